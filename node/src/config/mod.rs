//! Files that configure a node and a run. Both reject unknown keys and name the nearest right one.

mod beginning;
pub mod checkpoint_table;
mod external;
pub mod flock_tables;
pub mod in_force;
pub mod model_table;
pub mod node_file;
pub mod run_file;
pub mod sync_table;
pub mod task_table;
