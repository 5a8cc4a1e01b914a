//! OTLP over HTTP: sends encoded batches of points to one destination.
