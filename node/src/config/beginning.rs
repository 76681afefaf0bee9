//! A run file whose run begins from a trained model.

use super::model_table::ModelTable;
use super::run_file::RunFile;
use crate::exit::{Code, Failure};
use starling_protocol::Digest;
use starling_protocol::run::ModelSpec;

impl RunFile {
    /// Takes the sizes that the file leaves out from a trained model; a preset leaves none out.
    pub fn take_sizes(&mut self, of: &ModelSpec) {
        if self.names_preset() {
            return;
        }
        let table = &mut self.model;
        let sizes = [
            (&mut table.vocab, of.vocab),
            (&mut table.d_model, of.d_model),
            (&mut table.layers, of.layers),
            (&mut table.heads, of.heads),
            (&mut table.kv_heads, of.kv_heads),
            (&mut table.ffn, of.ffn),
            (&mut table.seq_len, of.seq_len),
        ];
        for (size, trained) in sizes {
            size.get_or_insert(trained);
        }
        table.tied.get_or_insert(of.tied);
        table.rope_theta.get_or_insert(of.rope_theta);
        table.norm_eps.get_or_insert(of.norm_eps);
    }

    /// Makes the run begin with the state of this root.
    ///
    /// # Errors
    /// If the file names another one.
    pub fn begin_with(&mut self, root: Digest) -> Result<(), Failure> {
        if let Some(named) = self.model.begins_with()?.filter(|named| *named != root) {
            let why = format!(
                "model.beginning = \"{named}\" in the run file, and the weights that --from names have {root}: name \
                 the checkpoint that the run began from, or leave the key out for a run of its own"
            );
            return Err(Failure::message(Code::ConfigMismatch, why));
        }
        self.model.beginning = Some(root.to_string());
        Ok(())
    }

    fn names_preset(&self) -> bool {
        let written: Result<toml::Table, _> = toml::from_str(self.written.text());
        written.is_ok_and(|file| file.get("model").is_some_and(|model| model.get("preset").is_some()))
    }
}

impl ModelTable {
    /// The root of the state with which the run begins, if the file names one.
    pub fn begins_with(&self) -> Result<Option<Digest>, Failure> {
        let Some(text) = &self.beginning else { return Ok(None) };
        let why = || {
            format!("model.beginning = \"{text}\" is not 64 hex digits: leave it out, and name the model with --from")
        };
        Digest::from_hex(text).map(Some).ok_or_else(|| Failure::message(Code::Usage, why()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::run::DataSpec;
    use std::path::Path;

    fn file(text: &str) -> RunFile {
        RunFile::parse(&format!("name = \"a\"\n{text}"), Path::new("run.toml")).expect("it parses")
    }

    fn trained() -> ModelSpec {
        starling_protocol::sample::spec().model
    }

    fn model_of(file: &RunFile) -> ModelSpec {
        let data = DataSpec { manifest: Digest([1; 32]), tokenizer: Digest([2; 32]) };
        file.spec(data, 256).expect("it is sound").model
    }

    #[test]
    fn sizes_that_are_left_out_are_those_of_the_trained_model() {
        let mut plain = file("");
        plain.take_sizes(&trained());
        assert_eq!(model_of(&plain), trained());
        let mut longer = file("[model]\nseq_len = 64\n");
        longer.take_sizes(&trained());
        assert_eq!(model_of(&longer), ModelSpec { seq_len: 64, ..trained() });
        let mut preset = file("model = { preset = \"0.1m\" }\n");
        preset.take_sizes(&trained());
        assert_eq!(model_of(&preset), model_of(&file("[model]\npreset = \"0.1m\"\n")));
    }

    #[test]
    fn a_file_that_names_another_beginning_is_refused() {
        let mut run = file("");
        run.begin_with(Digest([7; 32])).expect("it names none");
        run.begin_with(Digest([7; 32])).expect("it names this one");
        assert_eq!(run.model.begins_with().ok(), Some(Some(Digest([7; 32]))));
        let refused = run.begin_with(Digest([8; 32])).expect_err("another");
        assert_eq!(refused.code, Code::ConfigMismatch);
        let said = refused.error.to_string();
        assert!(said.contains(&"07".repeat(32)) && said.contains(&"08".repeat(32)), "{said}");
        run.model.beginning = Some("abc".into());
        let refused = run.model.begins_with().expect_err("no digest");
        assert!(refused.code == Code::Usage && refused.error.to_string().contains("64 hex digits"));
    }
}
