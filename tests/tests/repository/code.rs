//! Rust text reduced to what the compiler sees, without a parser: comments, literals and tests blanked.

/// The text with comments and the insides of strings blanked; lines stay where they are.
pub fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = skipped_len(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.extend(rest[..skipped].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[skipped..];
        }
    }
    code
}

/// Bytes of the comment or literal that `rest` begins with; 0 if it begins with code.
fn skipped_len(rest: &str, before: Option<char>) -> usize {
    let in_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_len(rest);
    }
    if rest.starts_with('"') {
        return string_len(rest);
    }
    if rest.starts_with('r') && !in_name {
        return raw_string_len(rest);
    }
    if rest.starts_with('\'') {
        return char_len(rest);
    }
    0
}

fn block_comment_len(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string_len(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// 0 if the `r` begins a name, not a raw string.
fn raw_string_len(rest: &str) -> usize {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let open = 1 + hashes;
    if !rest[open..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    rest[open + 1..].find(&close).map_or(rest.len(), |at| open + 1 + at + close.len())
}

/// 0 if the quote begins a lifetime, not a character.
fn char_len(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            let end = chars.skip(1).find(|(_, c)| *c == '\'');
            end.map_or(rest.len(), |(at, _)| at + 1)
        }
        Some(_) => chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

/// Code without the items that exist in tests only; lines stay where they are.
pub fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        let end = at + item_len(&rest[at..]);
        kept.push_str(&rest[..at]);
        kept.extend(rest[at..end].chars().filter(|c| *c == '\n'));
        rest = &rest[end..];
    }
    kept + rest
}

/// Bytes up to the end of an item: its `;`, or the brace that closes its body.
fn item_len(code: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return at + 1,
            '}' => depth -= 1,
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// Fields of the struct of this name that the code defines; none if it does not.
pub fn fields_of(code: &str, name: &str) -> Option<usize> {
    let at = code.find(&format!("struct {name} {{"))?;
    let body = &code[at..at + item_len(&code[at..])];
    let field = |line: &&str| line.starts_with("    ") && !line.starts_with("     ") && line.trim_end().ends_with(',');
    Some(body.lines().filter(field).count())
}
