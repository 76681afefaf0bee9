use super::*;

const SMALL: &str = "[scenario]\nend_s = 5\n[[scenario.nodes]]\nname = \"n\"\n";

fn parse(axes: &str) -> anyhow::Result<Grid> {
    Grid::parse(&format!("{axes}{SMALL}"), Path::new("a/links.toml"), |_| bail!("no file is named"))
}

fn refusal(axes: &str) -> String {
    format!("{:#}", parse(axes).expect_err(axes))
}

#[test]
fn all_combinations_in_order_and_values_where_they_belong() {
    let grid = parse("nodes = [2, 4]\nmbit = [20]\ndelay_ms = [0, 12.5]\nsteps = [30]\n").unwrap();
    assert_eq!(grid.name, "links");
    let names: Vec<&str> = grid.cells.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(
        names,
        ["nodes-2-delay_ms-0", "nodes-2-delay_ms-12.5", "nodes-4-delay_ms-0", "nodes-4-delay_ms-12.5"],
        "what has one value is in no name"
    );
    assert_eq!(grid.varied(), [0, 2]);
    let text = toml::to_string(&grid.cells[3].scenario).unwrap();
    let scenario = crate::scenario::Scenario::parse(&text, Path::new("cell.toml")).unwrap();
    assert_eq!(scenario.topology.nodes, 4);
    let (port, count) = (&scenario.topology.seats[0].port, scenario.topology.seats.len());
    assert_eq!((port.up, port.down), (20_000_000, 20_000_000));
    assert_eq!(scenario.topology.links[1].delay.as_micros(), 12_500);
    assert_eq!(scenario.topology.links[count - 1].delay.as_micros(), 100, "the bootstrap peer is where it was");
    assert_eq!(scenario.run["inner"]["steps"].as_integer(), Some(30));
}

#[test]
fn an_impossible_combination_is_left_out_of_the_grid_and_named() {
    let grid = parse("codec = [\"int8\", \"int4\"]\nengine = [\"ring\", \"owners\"]\n").unwrap();
    let names: Vec<&str> = grid.cells.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["int8-ring", "int8-owners", "int4-owners"]);
    assert_eq!(grid.left_out.len(), 1);
    assert_eq!(grid.left_out[0].0, "int4-ring");
    assert!(grid.left_out[0].1.contains("needs owners"), "{}", grid.left_out[0].1);
    assert!(refusal("codec = [\"int4\"]\nengine = [\"ring\"]\n").contains("no combination of these can be"));
    assert_eq!(parse("").unwrap().cells[0].name, "only");
}

/// A wrong file gives one message, with the nearest right word.
#[test]
fn wrong_sweeps_are_refused() {
    for (axes, told) in [
        ("node = [2]\n", "unknown key `node` at line 1; did you mean `nodes`?"),
        ("nodes = []\n", "nodes has 0 values"),
        ("nodes = [1]\n", "nodes holds 1, allowed are whole numbers from 2 to 64"),
        ("nodes = [2.5]\n", "nodes holds 2.5"),
        ("steps = [\"many\"]\n", "steps holds \"many\""),
        ("mbit = [0]\n", "mbit holds 0, allowed are numbers from 0.01"),
        ("delay_ms = [nan]\n", "delay_ms holds nan"),
        ("mbit = [20, 20]\n", "mbit holds 20 twice"),
        ("codec = [\"int9\"]\n", "codec holds \"int9\"; did you mean \"int8\"?"),
        ("engine = [\"rings\"]\n", "did you mean \"ring\"?"),
        ("base = \"other.toml\"\n", "and not both"),
    ] {
        let said = refusal(axes);
        assert!(said.contains(told), "{axes}: {said}");
    }
    let many: Vec<String> = (1..=17).map(|n| n.to_string()).collect();
    let said = refusal(&format!("steps = [{0}]\nmbit = [{0}]\n", many.join(", ")));
    assert!(said.contains("289 cells, at most 256"), "{said}");
    let many: Vec<String> = (1..=60).map(|n| n.to_string()).collect();
    let said = refusal(&format!("steps = [{0}]\nmbit = [{0}]\n", many.join(", ")));
    assert!(said.contains("3600 combinations"), "{said}");
    let parse = |text: &str| Grid::parse(text, Path::new("a.toml"), |_| bail!("no file")).map(|_| ()).unwrap_err();
    let said = format!("{:#}", parse(&format!("{SMALL}[[scenario.faults]]\nkind = \"kill\"\n")));
    assert!(said.contains("has no `faults`"), "{said}");
    let said = format!("{:#}", parse(&format!("nodes = [2]\n{SMALL}[[scenario.nodes]]\nname = \"b\"\n")));
    assert!(said.contains("several [[nodes]]"), "{said}");
    let said = format!("{:#}", parse(&format!("codec = [\"int8\"]\n{SMALL}[scenario.run]\nsync = \"every-step\"\n")));
    assert!(said.contains("sync must be a table"), "{said}");
    assert!(format!("{:#}", parse("nodes = [2]\n")).contains("say what is played"));
}

/// Every sweep of the repository loads.
#[test]
fn shipped_sweeps_are_fine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab/sweeps");
    for file in crate::scenario::files(&folder).unwrap() {
        let grid = Grid::load(&file).unwrap();
        assert!(!grid.about.is_empty(), "{} says what it is about", file.display());
        for cell in &grid.cells {
            let text = toml::to_string(&cell.scenario).unwrap();
            crate::scenario::Scenario::parse(&text, Path::new("cell.toml")).unwrap();
        }
    }
}
