//! A run's specification written as a run file: every setting that is in force, those that no file names included.

use super::flock_tables::{AdmissionName, AdmissionTable, JoinTable, MinorityName, PartitionTable};
use super::model_table::ModelTable;
use super::run_file::{BudgetTable, DataMode, DataTable, InnerTable, OuterRate, OuterTable, RunFile, Written};
use super::sync_table::{AUTO, GOSSIP, GossipTable, SyncTable};
use super::task_table::TaskTable;
use starling_kernels::ModelConfig;
use starling_protocol::run::{AdmissionMode, Codec, EngineKind, Minority, ModelSpec, RunSpec, SyncMode, SyncSpec};

/// The run file that gives this specification; the text is named by `data`, since a specification has only digests.
pub fn run_file(spec: &RunSpec, data: DataTable) -> RunFile {
    let (model, inner) = (&spec.model, &spec.inner);
    let beginning = spec.beginning.map(|root| root.to_string());
    let private = spec.task.as_ref().is_some_and(|task| task.samples == 0);
    RunFile {
        name: spec.name.clone(),
        seed: spec.seed,
        creator: spec.creator.map(|creator| creator.to_string()),
        model: match &spec.task {
            Some(_) => ModelTable { beginning, ..ModelTable::default() },
            None => ModelTable {
                preset: preset_of(model),
                d_model: Some(model.d_model),
                layers: Some(model.layers),
                heads: Some(model.heads),
                kv_heads: Some(model.kv_heads),
                ffn: Some(model.ffn),
                seq_len: Some(model.seq_len),
                tied: Some(model.tied),
                rope_theta: Some(model.rope_theta),
                norm_eps: Some(model.norm_eps),
                vocab: Some(model.vocab),
                beginning,
            },
        },
        task: spec.task.as_ref().map(TaskTable::of).unwrap_or_default(),
        data: DataTable { mode: private.then_some(DataMode::Private), ..data },
        inner: InnerTable {
            optimizer: Some(inner.optimizer),
            steps: Some(inner.steps),
            batch: inner.batch,
            accumulate: inner.accumulate,
            lr: Some(inner.lr),
            lr_final: inner.lr_final,
            warmup_steps: inner.warmup_steps,
            beta1: inner.beta1,
            beta2: inner.beta2,
            eps: inner.eps,
            weight_decay: inner.weight_decay,
            clip: inner.clip,
        },
        outer: match spec.sync.mode {
            SyncMode::Rounds => {
                OuterTable { lr: Some(OuterRate::Table(spec.outer.lr.clone())), momentum: Some(spec.outer.momentum) }
            }
            SyncMode::EveryStep => OuterTable::default(),
        },
        sync: sync_table(&spec.sync),
        partition: PartitionTable {
            minority: match spec.partition.minority {
                Minority::Fork => MinorityName::Fork,
                Minority::Wait => MinorityName::Wait,
                Minority::Halt => MinorityName::Halt,
            },
            grace_s: spec.partition.grace_ms / 1000,
        },
        admission: AdmissionTable {
            mode: match spec.admission.mode {
                AdmissionMode::Open => AdmissionName::Open,
                AdmissionMode::List => AdmissionName::List,
                AdmissionMode::Ticket => AdmissionName::Ticket,
            },
            allow: spec.admission.allow.iter().map(ToString::to_string).collect(),
            probation: Some(spec.admission.probation),
        },
        join: JoinTable { patience_s: spec.join.patience_ms / 1000, share: spec.join.share },
        budget: BudgetTable { rounds: spec.budget.rounds, tokens: spec.budget.tokens },
        written: Written::default(),
    }
}

/// The preset of these sizes, or any: all sizes are written beside it.
fn preset_of(model: &ModelSpec) -> String {
    let sizes = |name: &str| ModelConfig::preset(name).map(|preset| [preset.d_model, preset.layers, preset.heads]);
    let these = [model.d_model, model.layers, model.heads].map(|size| size as usize);
    let known = ModelConfig::preset_names().find(|name| sizes(name) == Some(these));
    known.unwrap_or("1m").to_owned()
}

fn sync_table(sync: &SyncSpec) -> SyncTable {
    SyncTable {
        mode: sync.mode.name().into(),
        codec: Some(if sync.coarsest.is_some() { AUTO.into() } else { sync.codec.name().into() }),
        k: match sync.codec {
            Codec::TopK { k } => Some(k),
            _ => None,
        },
        engine: Some(match sync.engine {
            _ if sync.gossip.is_some() => GOSSIP.into(),
            EngineKind::Ring if sync.coarsest.is_some() => AUTO.into(),
            engine => engine.name().into(),
        }),
        fragments: sync.fragments,
        overlap: sync.overlap,
        mixing: sync.mixing,
        adapt: Some(sync.gap_max > 0),
        gap_max: (sync.gap_max > 0).then_some(sync.gap_max),
        gossip: sync.gossip.as_ref().map(|gossip| GossipTable {
            steps: Some(gossip.steps),
            alpha: Some(gossip.alpha),
            beta: Some(gossip.beta),
            gamma: Some(gossip.gamma),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use starling_protocol::Digest;
    use starling_protocol::run::DataSpec;

    fn spec_of(text: &str) -> RunSpec {
        let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
        let file: RunFile = toml::from_str(text).expect("it parses");
        file.spec(data, 256).unwrap_or_else(|failure| panic!("{text}: {failure:?}"))
    }

    /// What is shown can be taken for a run file, and is then the same run.
    #[test]
    fn a_shown_run_is_the_same_run() {
        let texts = [
            "name = \"a\"\n",
            "name = \"a\"\nsync = \"every-step\"\n",
            "name = \"a\"\n[sync]\ncodec = \"top-k\"\nk = 512\n[budget]\nrounds = 900\n",
            "name = \"a\"\n[sync]\nengine = \"gossip\"\ncodec = \"int4\"\n[model]\npreset = \"3m\"\n",
            &format!("name = \"a\"\n[model]\nbeginning = \"{}\"\n", "5a".repeat(32)),
            "name = \"a\"\n[outer]\nlr = 0.5\n[partition]\nminority = \"halt\"\n[admission]\nprobation = 0\n",
        ];
        for text in texts {
            let spec = spec_of(text);
            let shown = toml::to_string(&run_file(&spec, DataTable::default())).expect("it can be shown");
            assert_eq!(spec_of(&shown), spec, "{text}\n{shown}");
            assert!(shown.contains("d_model = ") && shown.contains("codec = "), "{shown}");
        }
    }
}
