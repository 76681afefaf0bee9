//! The trainer of this node: the built-in model on a device, or a trainer that its user brings.

use super::footing::open_trainer;
use super::guest::Guest;
use super::language::LanguageModel;
use super::opened;
use super::trainer::Task;
use crate::cli::TrainArgs;
use crate::config::model_table::model_config;
use crate::config::run_file::trainer_options;
use crate::exit::{Code, Failure};
use starling_data::Dataset;
use starling_kernels::{DeviceChoice, Trainer};
use starling_protocol::run::RunSpec;
use std::sync::Arc;

/// The learning side of a node.
pub enum Learner {
    /// The built-in model.
    BuiltIn(Box<dyn Trainer>),
    /// A user's trainer, on a device of which the node knows nothing.
    Brought,
}

impl Learner {
    /// Opens the device for the built-in model.
    pub fn open(args: &TrainArgs, device: &DeviceChoice, spec: &RunSpec, threads: usize) -> Result<Self, Failure> {
        if spec.task.is_some() {
            return Ok(Self::Brought);
        }
        let options = trainer_options(&spec.inner, threads);
        let trainer = open_trainer(args, device, &model_config(&spec.model), &options)?;
        opened::log(&*trainer);
        Ok(Self::BuiltIn(trainer))
    }

    /// The device, for people.
    pub fn device(&self) -> String {
        match self {
            Self::BuiltIn(trainer) => trainer.device().to_string(),
            Self::Brought => "its trainer's own".into(),
        }
    }

    /// The task of the trainer thread.
    pub fn task(self, spec: &RunSpec, data: &Arc<Dataset>, guest: Option<&Guest>) -> Result<Box<dyn Task>, Failure> {
        match (self, &spec.task, guest) {
            (Self::BuiltIn(trainer), ..) => {
                Ok(Box::new(LanguageModel::new(trainer, data.clone(), spec.model.seq_len as usize)))
            }
            (Self::Brought, Some(task), Some(guest)) => Ok(Box::new(guest.task(spec, task))),
            (Self::Brought, ..) => Err(Failure::message(Code::Refused, "the node has no trainer's socket")),
        }
    }
}
