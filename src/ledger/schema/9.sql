-- Schema version 9: how GPUs are held on the node where no grant names them.

ALTER TABLE node ADD COLUMN how_held TEXT; -- presence, nothing_grants: by presence; grants, standing, kubelet, slurm, scheduled,
                                           -- was_off: by grants alone; NULL: not known
ALTER TABLE node ADD COLUMN how_held_since_ns INTEGER; -- from when on it is so: a bill that begins before does not say it
