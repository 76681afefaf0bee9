//! Lines of keys in a TOML text, for complaints about values that the reader takes and the program does not.

/// The line of a key such as `inner.lr`, of the table that it names, or of the value that holds it; none if it is not
/// there.
pub fn line_of_key(text: &str, key: &str) -> Option<usize> {
    let mut table = String::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            table = header.split(']').next().unwrap_or_default().trim().to_owned();
            if table == key {
                return Some(index + 1);
            }
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim();
            let whole = if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") };
            let within = key.strip_prefix(&whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            if within {
                return Some(index + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_tables_and_in_values() {
        let text = "name = \"a\"\n# lr = 1\nsync = { fragments = 2 }\n[inner]\nlr = 1\n lr_final = 2\n\
                    [outer]\nlr = 3\n";
        assert_eq!(line_of_key(text, "name"), Some(1));
        assert_eq!(line_of_key(text, "sync.fragments"), Some(3));
        assert_eq!((line_of_key(text, "inner.lr"), line_of_key(text, "inner.lr_final")), (Some(5), Some(6)));
        assert_eq!((line_of_key(text, "outer.lr"), line_of_key(text, "outer")), (Some(8), Some(7)));
        assert_eq!(line_of_key(text, "inner.beta1"), None);
    }
}
