//! The page of a report, in one file: without scripts, fonts or pictures from elsewhere.

use super::picture::Picture;
use super::summary::{Report, told};
use std::fmt::Write;

const STYLE: &str = "
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, 'DejaVu Sans', sans-serif; color: #1c1c1c; background: #f6f7f8; margin: 0; }
main { max-width: 1010px; margin: 0 auto; padding: 24px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 32px 0 8px; }
.verdict { display: inline-block; color: #fff; text-decoration: none; border-radius: 4px; padding: 1px 10px; font-weight: 600; }
.green { background: #00754f; } .red { background: #b3261e; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 10px; margin: 18px 0; }
.tile { background: #fff; border: 1px solid #e2e4e6; border-radius: 6px; padding: 10px 14px; }
.tile b { display: block; font-size: 21px; } .tile span { color: #555; font-size: 13px; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid #e2e4e6; }
th, td { text-align: left; padding: 5px 10px; border-bottom: 1px solid #eceef0; vertical-align: top; }
th { background: #f0f2f4; font-weight: 600; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace; }
figure { margin: 14px 0; background: #fff; border: 1px solid #e2e4e6; border-radius: 6px; padding: 8px; }
figcaption { font-weight: 600; padding: 2px 8px 6px; } svg { max-width: 100%; height: auto; }
.note { color: #555; font-size: 13px; }
";

/// The page as HTML. `again` is the command that plays the scenario again.
pub fn html(report: &Report, pictures: &[Picture], again: &str) -> String {
    let mut page = format!("<p>{}</p>\n", escape(&report.about));
    if !report.must_fail.is_empty() {
        let _ = writeln!(
            page,
            "<p class=\"note\">Something is wrong here on purpose: green only if this finds it: {}.</p>",
            escape(&report.must_fail.join(", "))
        );
    }
    if report.plain {
        let _ = writeln!(
            page,
            "<p class=\"note\">Played on loopback, without an emulated network. Left out: {}.</p>",
            escape(&report.left_out.join("; "))
        );
    }
    tiles(&mut page, report);
    figure(&mut page, pictures, "timeline");
    page += "<p class=\"note\">Faults are the red bands.</p>\n";
    checks(&mut page, report);
    recoveries(&mut page, report);
    page += "<h2>Loss</h2>\n";
    figure(&mut page, pictures, "loss-time");
    figure(&mut page, pictures, "loss-tokens");
    page += "<h2>Rounds</h2>\n";
    ["contributors", "rounds", "steps", "codec"].iter().for_each(|name| figure(&mut page, pictures, name));
    if !report.plain {
        page += "<h2>Network</h2>\n";
        ["sent", "received"].iter().for_each(|name| figure(&mut page, pictures, name));
    }
    if pictures.iter().any(|picture| picture.name == "fetches") {
        page += "<h2>Catching up</h2>\n";
        figure(&mut page, pictures, "fetches");
    }
    figures(&mut page, report);
    nodes(&mut page, report);
    // Writing to a String cannot fail.
    let _ = writeln!(page, "<h2>Again</h2><p><code>{}</code></p>", escape(again));
    frame(&report.scenario, report.ok, &page)
}

/// A whole page around `body`.
pub fn frame(title: &str, ok: bool, body: &str) -> String {
    let word = if ok { "green" } else { "red" };
    framed(title, ok, word, body)
}

fn framed(title: &str, ok: bool, verdict: &str, body: &str) -> String {
    let (title, class) = (escape(title), if ok { "green" } else { "red" });
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body><main>\n\
         <h1>{title} <span class=\"verdict {class}\">{verdict}</span></h1>{body}</main></body></html>\n"
    )
}

/// The page of several scenarios.
pub fn summary(reports: &[Report]) -> String {
    let green = reports.iter().filter(|r| r.ok).count();
    let mut page =
        "<table><tr><th>scenario</th><th></th><th>what it shows</th><th>covers</th><th class=\"n\">rounds</th>\
                    <th class=\"n\">longest gap</th><th>broken rules</th></tr>\n"
            .to_owned();
    for report in reports {
        let (class, name) = (if report.ok { "green" } else { "red" }, escape(&report.scenario));
        let broken: Vec<&str> = report.checks.iter().filter(|c| !c.ok).map(|c| c.name.as_str()).collect();
        let _ = writeln!(
            page,
            "<tr><td><a href=\"{name}/index.html\">{name}</a></td><td><span class=\"verdict {class}\">{class}</span></td><td>{}</td>\
             <td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
            escape(&report.about),
            escape(&report.covers.join(", ")),
            report.rounds,
            told(report.max_gap_s),
            escape(&broken.join(", ")),
        );
    }
    page += "</table>\n";
    framed("Starling lab", green == reports.len(), &format!("{green} of {} green", reports.len()), &page)
}

fn tiles(page: &mut String, report: &Report) {
    let tiles = [
        (report.rounds.to_string(), "rounds committed"),
        (report.nodes.len().to_string(), "nodes"),
        (told(report.max_gap_s), "longest time without a commit"),
        (report.parity_breaks.to_string(), "parity breaks"),
        (format!("{:.2} M", report.tokens as f64 / 1e6), "tokens"),
        (told(report.start.running_s), "until all nodes ran"),
        (told(report.start.all_in_s), "until all had a commit together"),
        (format!("{:.0} s", report.seconds), "in all"),
    ];
    *page += "<div class=\"tiles\">";
    for (value, what) in tiles {
        let _ = write!(page, "<div class=\"tile\"><b>{value}</b><span>{what}</span></div>");
    }
    *page += "</div>\n";
}

fn checks(page: &mut String, report: &Report) {
    *page += "<h2>Checks</h2><table><tr><th>rule</th><th></th><th>what was found</th></tr>\n";
    for check in &report.checks {
        let (class, word) = if check.ok { ("green", "holds") } else { ("red", "broken") };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td><span class=\"verdict {class}\">{word}</span></td><td>{}</td></tr>",
            escape(&check.name),
            escape(&check.detail)
        );
    }
    *page += "</table>\n";
}

fn recoveries(page: &mut String, report: &Report) {
    if report.recoveries.is_empty() {
        return;
    }
    *page += "<h2>Faults</h2><table><tr><th class=\"n\">at</th><th>fault</th><th class=\"n\">next commit after</th>\
              <th class=\"n\">all together after its end</th></tr>\n";
    for fault in &report.recoveries {
        let _ = writeln!(
            page,
            "<tr><td class=\"n\">{:.1} s</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            fault.at_s,
            escape(&fault.fault),
            told(fault.seconds),
            told(fault.whole_seconds)
        );
    }
    *page += "</table>\n";
}

fn figures(page: &mut String, report: &Report) {
    *page += "<h2>Figures</h2><table>\n";
    for (name, value) in report.figures.rows() {
        let _ = writeln!(page, "<tr><td>{name}</td><td class=\"n\">{value}</td></tr>");
    }
    *page += "</table>\n<p class=\"note\">All nodes share this machine's processor, so that one node trains slower than it would alone.</p>\n";
}

fn nodes(page: &mut String, report: &Report) {
    *page += "<h2>Nodes</h2><table><tr><th>node</th><th class=\"n\">rounds</th><th class=\"n\">tokens trained</th>\
              <th class=\"n\">MB sent</th><th class=\"n\">starts</th><th>at the end</th><th>state</th></tr>\n";
    for node in &report.nodes {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:.1}</td><td class=\"n\">{}</td><td>{}</td><td><code>{}</code></td></tr>",
            escape(&node.name),
            node.rounds,
            node.tokens,
            node.bytes_sent as f64 / 1e6,
            node.starts,
            if node.alive { "alive" } else { "down" },
            escape(node.state_root.get(..12).unwrap_or(&node.state_root)),
        );
    }
    *page += "</table>\n";
}

fn figure(page: &mut String, pictures: &[Picture], name: &str) {
    if let Some(picture) = pictures.iter().find(|p| p.name == name) {
        let _ = writeln!(
            page,
            "<figure><figcaption>{}</figcaption>{}</figure>",
            escape(&picture.title),
            scaled(&picture.svg)
        );
    }
}

/// A picture with its title.
pub fn figure_of(picture: &Picture) -> String {
    let (title, svg) = (escape(&picture.title), scaled(&picture.svg));
    format!("<figure><figcaption>{title}</figcaption>{svg}</figure>\n")
}

/// The picture as part of the page, without the XML before it; the page may be narrower than the picture.
fn scaled(svg: &str) -> String {
    let open = svg.find("<svg").unwrap_or(0);
    svg[open..].to_owned()
}

/// Escapes a node's text, which is not markup.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
