-- Where each GPU is that this node had once, as last told; added to ledgers that lack it. A GPU without a row
-- was present when it was last seen.
CREATE TABLE IF NOT EXISTS expected (
    gpu         INTEGER PRIMARY KEY REFERENCES gpu (id),
    pci_bus_id  TEXT NOT NULL,    -- where it sat, as the kernel writes it; empty: not known
    whereabouts TEXT NOT NULL,    -- present, lost, gone, guest, replaced, forgotten
    since_ns    INTEGER NOT NULL  -- account time
) STRICT;
