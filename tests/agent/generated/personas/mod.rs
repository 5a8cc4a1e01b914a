//! The persona matrix: which series exist under which driver on which board, and why the others do not.
//!
//! Each column is a node of one GPU whose library lacks what that driver's lacks, symbol by symbol; the real
//! binary's `doctor` says of each family how it stands. `docs/personas.md` is that, generated and compared. What
//! matters most stands in `expectations` again, written by hand.

mod expectations;
mod matrix;
mod node;
