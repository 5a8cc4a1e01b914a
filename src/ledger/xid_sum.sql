-- XID errors of each GPU over all time, as the metrics publish them; added to ledgers that lack it.
CREATE TABLE IF NOT EXISTS xid_sum (
    gpu      INTEGER PRIMARY KEY REFERENCES gpu (id),
    since_ns INTEGER,       -- account time at which the GPU was forgotten and counting began again; NULL: never
    actions  TEXT NOT NULL, -- JSON: recommended action -> count
    codes    TEXT NOT NULL, -- JSON: XID -> count, wall clock of the last one, what each source reported lately
    boot_id  TEXT NOT NULL  -- the boot of the times since boot in codes
) STRICT;
