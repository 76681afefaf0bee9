//! Byte-level tokens as a Hugging Face `tokenizer.json`, for programs that read models in that shape.

use serde_json::{Value, json};

/// A tokenizer that gives each byte the token of its value.
///
/// It is a byte-level BPE without merges. Such tokenizers write each byte as one letter: itself if it is printable, else
/// one from U+0100 on (GPT-2's table).
pub fn bytes_tokenizer_json() -> String {
    let letter_of = letters();
    let vocab: serde_json::Map<String, Value> =
        letter_of.iter().enumerate().map(|(byte, letter)| (letter.to_string(), byte.into())).collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []}
    });
    format!("{file:#}\n")
}

/// The letter of each byte.
fn letters() -> [char; 256] {
    let mut letters = ['\0'; 256];
    let mut others = '\u{100}'..;
    for (byte, letter) in (0..=255u8).zip(&mut letters) {
        let is_printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        *letter = if is_printable { char::from(byte) } else { others.next().unwrap_or_default() };
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn the_library_gives_each_byte_its_value_and_the_text_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, bytes_tokenizer_json()).unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        assert_eq!(tokenizer.vocab(), 256);
        let odd = "naïve 文字 \u{1f426}\u{0}\u{7f} \u{ad}";
        for text in ["", "fn main() {\n\t1 + 2;\r\n}", odd, "  two  spaces  ", "Ā<|endoftext|>"] {
            let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
            assert_eq!(tokenizer.encode(text).unwrap(), tokens, "{text:?}");
            assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
        }
    }
}
