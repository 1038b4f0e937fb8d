CREATE TABLE dl_schema_versions (
    version BIGINT NOT NULL,
    applied_at_ms BIGINT NOT NULL,
    client TEXT NOT NULL,
    CONSTRAINT dl_schema_versions_pk PRIMARY KEY (version)
);

-- The head row of each table, with the newest metadata and protocol. A writer that holds
-- the table's lock may ratify the next version. `stat_columns` says which columns have
-- indexed bounds, since which version, and the width classes of the bounds.
CREATE TABLE dl_tables (
    table_id BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    location TEXT COLLATE "C" NOT NULL,
    created_at_ms BIGINT NOT NULL,
    current_version BIGINT NOT NULL,
    first_version BIGINT NOT NULL,
    next_file BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    num_files BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    stat_columns TEXT NOT NULL,
    metadata_version BIGINT NOT NULL,
    metadata TEXT NOT NULL,
    protocol_version BIGINT NOT NULL,
    protocol TEXT NOT NULL,
    CONSTRAINT dl_tables_pk PRIMARY KEY (table_id),
    CONSTRAINT dl_tables_name UNIQUE (name),
    CONSTRAINT dl_tables_location UNIQUE (location)
);

CREATE TABLE dl_table_versions (
    table_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    timestamp_ms BIGINT NOT NULL,
    transaction_id TEXT NOT NULL,
    operation TEXT,
    operation_parameters TEXT,
    operation_metrics TEXT,
    user_metadata TEXT,
    engine_info TEXT,
    read_version BIGINT,
    isolation_level TEXT,
    is_blind_append BOOLEAN,
    db_user TEXT,
    os_user TEXT,
    host TEXT,
    client TEXT,
    metadata_version BIGINT NOT NULL,
    protocol_version BIGINT NOT NULL,
    num_added_files BIGINT NOT NULL,
    num_removed_files BIGINT NOT NULL,
    added_bytes BIGINT NOT NULL,
    removed_bytes BIGINT NOT NULL,
    num_files BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    commit_info TEXT,
    other_actions TEXT,
    published_sha256 TEXT,
    CONSTRAINT dl_table_versions_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_table_versions_table FOREIGN KEY (table_id)
        REFERENCES dl_tables (table_id)
);
CREATE INDEX dl_table_versions_time ON dl_table_versions (table_id, timestamp_ms);
CREATE INDEX dl_table_versions_transaction ON dl_table_versions (transaction_id);

CREATE TABLE dl_metadata (
    table_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_metadata_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_metadata_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);

CREATE TABLE dl_protocols (
    table_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_protocols_pk PRIMARY KEY (table_id, version),
    CONSTRAINT dl_protocols_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);

CREATE TABLE dl_txns (
    table_id BIGINT NOT NULL,
    app_id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    txn_version BIGINT NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_txns_pk PRIMARY KEY (table_id, app_id, version),
    CONSTRAINT dl_txns_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);
CREATE INDEX dl_txns_version ON dl_txns (table_id, version);

CREATE TABLE dl_domains (
    table_id BIGINT NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    removed BOOLEAN NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_domains_pk PRIMARY KEY (table_id, domain, version),
    CONSTRAINT dl_domains_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);
CREATE INDEX dl_domains_version ON dl_domains (table_id, version);

CREATE TABLE dl_cdc_files (
    table_id BIGINT NOT NULL,
    version BIGINT NOT NULL,
    ordinal BIGINT NOT NULL,
    path TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    action TEXT NOT NULL,
    CONSTRAINT dl_cdc_files_pk PRIMARY KEY (table_id, version, ordinal),
    CONSTRAINT dl_cdc_files_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);

-- One row for each time that a file is added. `file_id` has the table's number in its
-- high bits, so the rows of a table are stored together. There is no foreign key, because
-- checking it would double the time of bulk commits, and a writer holds the table's lock.
CREATE TABLE dl_files (
    file_id BIGINT NOT NULL,
    table_id BIGINT NOT NULL,
    path TEXT NOT NULL,
    path_hash BIGINT NOT NULL,
    dv_id TEXT NOT NULL,
    added_version BIGINT,
    removed_version BIGINT,
    partition_values TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    modification_time_ms BIGINT NOT NULL,
    data_change BOOLEAN NOT NULL,
    num_records BIGINT,
    stats TEXT,
    tags TEXT,
    deletion_vector TEXT,
    base_row_id BIGINT,
    default_row_commit_version BIGINT,
    clustering_provider TEXT,
    null_fields SMALLINT NOT NULL,
    extra TEXT,
    deletion_timestamp_ms BIGINT,
    remove_data_change BOOLEAN,
    remove_fields TEXT,
    CONSTRAINT dl_files_pk PRIMARY KEY (file_id)
);
CREATE INDEX dl_files_path ON dl_files (path_hash);
CREATE INDEX dl_files_added ON dl_files (table_id, added_version);
CREATE INDEX dl_files_removed ON dl_files (table_id, removed_version);

CREATE TABLE dl_number_stats (
    file_id BIGINT NOT NULL,
    column_id BIGINT NOT NULL,
    class SMALLINT NOT NULL,
    lo DOUBLE PRECISION NOT NULL,
    hi DOUBLE PRECISION NOT NULL,
    has_null BOOLEAN NOT NULL,
    added_version BIGINT NOT NULL,
    removed_version BIGINT,
    CONSTRAINT dl_number_stats_pk PRIMARY KEY (file_id, column_id)
);
CREATE INDEX dl_number_stats_live
    ON dl_number_stats (column_id, class, hi, lo, file_id)
    WHERE removed_version IS NULL;
CREATE INDEX dl_number_stats_dead
    ON dl_number_stats (
        column_id, class, hi, lo, removed_version, added_version, file_id
    )
    WHERE removed_version IS NOT NULL;
CREATE INDEX dl_number_stats_nulls
    ON dl_number_stats (column_id, removed_version, file_id)
    WHERE has_null;

CREATE TABLE dl_text_stats (
    file_id BIGINT NOT NULL,
    column_id BIGINT NOT NULL,
    class SMALLINT NOT NULL,
    lo TEXT COLLATE "C" NOT NULL,
    hi TEXT COLLATE "C" NOT NULL,
    has_null BOOLEAN NOT NULL,
    added_version BIGINT NOT NULL,
    removed_version BIGINT,
    CONSTRAINT dl_text_stats_pk PRIMARY KEY (file_id, column_id)
);
CREATE INDEX dl_text_stats_live ON dl_text_stats (column_id, class, hi, lo, file_id)
    WHERE removed_version IS NULL;
CREATE INDEX dl_text_stats_dead
    ON dl_text_stats (
        column_id, class, hi, lo, removed_version, added_version, file_id
    )
    WHERE removed_version IS NOT NULL;
CREATE INDEX dl_text_stats_nulls ON dl_text_stats (column_id, removed_version, file_id)
    WHERE has_null;

-- The outbox: the versions of a table above `published_version` aren't published yet.
CREATE TABLE dl_mirrors (
    table_id BIGINT NOT NULL,
    published_version BIGINT NOT NULL,
    state TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    last_error TEXT,
    next_try_ms BIGINT,
    lease_owner TEXT,
    lease_until_ms BIGINT,
    fence BIGINT NOT NULL,
    checkpoint_version BIGINT NOT NULL,
    checkpoint_until_ms BIGINT,
    CONSTRAINT dl_mirrors_pk PRIMARY KEY (table_id),
    CONSTRAINT dl_mirrors_table FOREIGN KEY (table_id) REFERENCES dl_tables (table_id)
);
