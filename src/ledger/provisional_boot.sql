-- The boot whose offset is not fixed yet, because its wall clock cannot be trusted. Spans of it are stored on a
-- provisional axis; the transaction that fixes the offset moves them and enters the boot in `boot`.
CREATE TABLE IF NOT EXISTS provisional_boot (
    boot_id   TEXT PRIMARY KEY,  -- /proc/sys/kernel/random/boot_id
    offset_ns INTEGER NOT NULL,  -- provisional account time - time since boot
    since_ns  INTEGER NOT NULL   -- end of what was committed before this boot; 0: the ledger is new
) STRICT, WITHOUT ROWID;
