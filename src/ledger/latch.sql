-- What only a reset of a GPU ends, as last told; added to ledgers that lack it. It holds in the boot in which it
-- was stored, and until the driver's module is another one or the energy counter has gone back.
CREATE TABLE IF NOT EXISTS latch (
    gpu               INTEGER NOT NULL REFERENCES gpu (id),
    rule              TEXT NOT NULL,    -- rule of the verdict; __unavailable__: the GPU's time is unavailable
    since_ns          INTEGER NOT NULL, -- wall clock
    count             INTEGER NOT NULL, -- how often the driver noticed it; 0 where it gives no such notice
    xids              TEXT NOT NULL,    -- JSON: XID -> [how often, GPU instance of the last that named one]
    boot_id           TEXT NOT NULL,
    module            INTEGER,          -- number of the loaded driver module; NULL: not known
    energy_counter_uj INTEGER,          -- the driver's energy counter then; NULL: not read
    PRIMARY KEY (gpu, rule)
) STRICT, WITHOUT ROWID;
