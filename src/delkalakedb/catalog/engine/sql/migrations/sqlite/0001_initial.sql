CREATE TABLE dl_schema_versions (
    version INTEGER NOT NULL,
    applied_at_ms INTEGER NOT NULL,
    client TEXT NOT NULL,
    CONSTRAINT dl_schema_versions_pk PRIMARY KEY (version)
) STRICT;

-- The head row of each table, with the newest metadata and protocol. A writer that holds
-- the table's lock may ratify the next version. `stat_columns` says which columns have
-- indexed bounds, since which version, and the width classes of the bounds.
CREATE TABLE dl_tables (
    table_id INTEGER NOT NULL,
    name TEXT NOT NULL,
    location TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    current_version INTEGER NOT NULL,
    first_version INTEGER NOT NULL,
    next_file INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    num_files INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    stat_columns TEXT NOT NULL,
    metadata_version INTEGER NOT NULL,
    metadata TEXT NOT NULL,
    protocol_version INTEGER NOT NULL,
    protocol TEXT NOT NULL,
    CONSTRAINT dl_tables_pk PRIMARY KEY (table_id),
    CONSTRAINT dl_tables_name UNIQUE (name),
    CONSTRAINT dl_tables_location UNIQUE (location)
) STRICT;

CREATE TABLE dl_table_versions (
    table_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    transaction_id TEXT NOT NULL,
    operation TEXT,
    operation_parameters TEXT,
    operation_metrics TEXT,
    user_metadata TEXT,
    engine_info TEXT,
    read_version INTEGER,
    isolation_level TEXT,
    is_blind_append INTEGER,
    db_user TEXT,
    os_user TEXT,
    host TEXT,
    client TEXT,
    metadata_version INTEGER NOT NULL,
    protocol_version INTEGER NOT NULL,
    num_added_files INTEGER NOT NULL,
    num_removed_files INTEGER NOT NULL,
    added_bytes INTEGER NOT NULL,
    removed_bytes INTEGER NOT NULL,
    num_files INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    commit_info TEXT,
    other_actions TEXT,
    published_sha256 TEXT,
    CONSTRAINT dl_table_versions_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_table_versions_table FOREIGN KEY (table_id)
        REFERENCES dl_tables (table_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dl_table_versions_time ON dl_table_versions (table_id, timestamp_ms);
CREATE INDEX dl_table_versions_transaction ON dl_table_versions (transaction_id);

CREATE TABLE dl_metadata (
    table_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_metadata_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_metadata_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT;

CREATE TABLE dl_protocols (
    table_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_protocols_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_protocols_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT;

CREATE TABLE dl_txns (
    table_id INTEGER NOT NULL,
    app_id TEXT NOT NULL,
    version INTEGER NOT NULL,
    txn_version INTEGER NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_txns_pk PRIMARY KEY (table_id, app_id, version),
    CONSTRAINT dl_txns_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dl_txns_version ON dl_txns (table_id, version);

CREATE TABLE dl_domains (
    table_id INTEGER NOT NULL,
    domain TEXT NOT NULL,
    version INTEGER NOT NULL,
    removed INTEGER NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_domains_pk PRIMARY KEY (table_id, domain, version),
    CONSTRAINT dl_domains_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT;
CREATE INDEX dl_domains_version ON dl_domains (table_id, version);

CREATE TABLE dl_cdc_files (
    table_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    path TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_cdc_files_pk PRIMARY KEY (table_id, version, ordinal),
    CONSTRAINT dl_cdc_files_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT;

-- One row for each time that a file is added. `file_id` has the table's number in its
-- high bits, so the rows of a table are stored together. There is no foreign key, because
-- checking it would double the time of bulk commits, and a writer holds the table's lock.
CREATE TABLE dl_files (
    file_id INTEGER NOT NULL,
    table_id INTEGER NOT NULL,
    path TEXT NOT NULL,
    path_hash INTEGER NOT NULL,
    dv_id TEXT NOT NULL,
    added_version INTEGER,
    removed_version INTEGER,
    partition_values TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    modification_time_ms INTEGER NOT NULL,
    data_change INTEGER NOT NULL,
    num_records INTEGER,
    stats TEXT,
    tags TEXT,
    deletion_vector TEXT,
    base_row_id INTEGER,
    default_row_commit_version INTEGER,
    clustering_provider TEXT,
    null_fields INTEGER NOT NULL,
    extra TEXT,
    deletion_timestamp_ms INTEGER,
    remove_data_change INTEGER,
    remove_fields TEXT,
    CONSTRAINT dl_files_pk PRIMARY KEY (file_id)
) STRICT;
CREATE INDEX dl_files_path ON dl_files (path_hash);
CREATE INDEX dl_files_added ON dl_files (table_id, added_version);
CREATE INDEX dl_files_removed ON dl_files (table_id, removed_version);

CREATE TABLE dl_number_stats (
    file_id INTEGER NOT NULL,
    column_id INTEGER NOT NULL,
    class INTEGER NOT NULL,
    lo REAL NOT NULL,
    hi REAL NOT NULL,
    has_null INTEGER NOT NULL,
    added_version INTEGER NOT NULL,
    removed_version INTEGER,
    CONSTRAINT dl_number_stats_pk PRIMARY KEY (file_id, column_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dl_number_stats_live ON dl_number_stats (column_id, class, hi, lo)
    WHERE removed_version IS NULL;
CREATE INDEX dl_number_stats_dead
    ON dl_number_stats (column_id, class, hi, lo, removed_version, added_version)
    WHERE removed_version IS NOT NULL;
CREATE INDEX dl_number_stats_nulls ON dl_number_stats (column_id, removed_version)
    WHERE has_null = 1;

CREATE TABLE dl_text_stats (
    file_id INTEGER NOT NULL,
    column_id INTEGER NOT NULL,
    class INTEGER NOT NULL,
    lo TEXT NOT NULL,
    hi TEXT NOT NULL,
    has_null INTEGER NOT NULL,
    added_version INTEGER NOT NULL,
    removed_version INTEGER,
    CONSTRAINT dl_text_stats_pk PRIMARY KEY (file_id, column_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dl_text_stats_live ON dl_text_stats (column_id, class, hi, lo)
    WHERE removed_version IS NULL;
CREATE INDEX dl_text_stats_dead
    ON dl_text_stats (column_id, class, hi, lo, removed_version, added_version)
    WHERE removed_version IS NOT NULL;
CREATE INDEX dl_text_stats_nulls ON dl_text_stats (column_id, removed_version)
    WHERE has_null = 1;

-- The outbox: the versions of a table above `published_version` aren't published yet.
CREATE TABLE dl_mirrors (
    table_id INTEGER NOT NULL,
    published_version INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    next_try_ms INTEGER,
    lease_owner TEXT,
    lease_until_ms INTEGER,
    fence INTEGER NOT NULL,
    checkpoint_version INTEGER NOT NULL,
    checkpoint_until_ms INTEGER,
    CONSTRAINT dl_mirrors_pk PRIMARY KEY (table_id),
    CONSTRAINT dl_mirrors_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
) STRICT;
