//! gpumeter
