//! Parameter synchronisation: keys and their values over several devices and several processes.
//!
//! - [`transport`]: messages between the ranks of a group: threads of a process, or processes of an MPI job

pub mod transport;

pub use transport::Transport;
