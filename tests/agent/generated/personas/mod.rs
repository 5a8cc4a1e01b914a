//! The matrix of driver variants: which series exist under which driver on which board, and why others do not.
//!
//! Each column is a node of one GPU whose library lacks the symbols that this driver lacks; the real binary's
//! `doctor` reports the state of each family. `docs/personas.md` is generated from that and compared. The most
//! important cells are written by hand in `expectations`.

mod expectations;
mod matrix;
mod node;
