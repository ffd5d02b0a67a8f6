//! Indexes and constraints of the segmented tables: declared once in `sql/objects.toml`, created, dropped and
//! checked from there.
//!
//! In: the declared list. Out: statements for a parent table or for the partition of one segment, and the differences
//! between the list and the catalogue ([`catalogue_differences`]). Called by the restore, by the attach of a segment
//! and by `verify`. It builds statements only from declared names, quoted in [`quote`].

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use tokio_postgres::Client;

/// Schema of the segmented tables.
const SCHEMA: &str = "chain";

/// The tables that are partitioned by segment.
pub const SEGMENTED: [&str; 3] = ["transactions", "outputs", "inputs"];

/// An index of a segmented table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Name on the parent, such as `outputs_script_hash_tx_num_idx`.
    pub name: String,
    /// The table.
    pub table: String,
    /// Its columns, in order.
    pub columns: Vec<String>,
    /// Whether entries are unique; a primary key's are.
    #[serde(default)]
    pub unique: bool,
    /// Whether it is the table's primary key.
    #[serde(default)]
    pub primary_key: bool,
    /// Cost of building it, core-microseconds a row.
    pub cost: f64,
}

/// A foreign key of a segmented table: to the same segment's partition of another, or to an ordinary table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignKey {
    /// Name, such as `outputs_tx_num_fkey`.
    pub name: String,
    /// The table that refers.
    pub table: String,
    /// Its columns, in order.
    pub columns: Vec<String>,
    /// The table referred to.
    pub references: String,
    /// The columns there.
    pub referenced_columns: Vec<String>,
}

/// The declared list.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Objects {
    /// Indexes, in the order of the file.
    #[serde(rename = "index")]
    pub indexes: Vec<Index>,
    /// Foreign keys, in the order of the file.
    #[serde(rename = "foreign_key")]
    pub foreign_keys: Vec<ForeignKey>,
}

/// The declared list, parsed once.
#[must_use]
pub fn declared() -> &'static Objects {
    static OBJECTS: LazyLock<Objects> = LazyLock::new(|| {
        toml::from_str(include_str!("../../sql/objects.toml")).expect("a test parses this very text")
    });
    &OBJECTS
}

/// Quotes an identifier. Every identifier in a dynamic statement passes through here.
#[must_use]
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

fn quote_all(columns: &[String]) -> String {
    columns.iter().map(|column| quote(column)).collect::<Vec<_>>().join(", ")
}

/// A table of schema `chain`, qualified and quoted.
#[must_use]
pub fn qualified(table: &str) -> String {
    format!("{}.{}", quote(SCHEMA), quote(table))
}

/// Name of a segment's partition: `outputs_0003`.
#[must_use]
pub fn segment_table(table: &str, segment_id: u32) -> String {
    format!("{table}_{segment_id:04}")
}

/// Name of an object on a segment's partition: `outputs_tx_num_fkey` becomes `outputs_0003_tx_num_fkey`.
fn segment_object(name: &str, table: &str, segment_id: u32) -> String {
    let suffix = name.strip_prefix(table).expect("a test checks that names begin with their table's");
    format!("{}{suffix}", segment_table(table, segment_id))
}

/// Table and segment of a partition's name; `None` where it is no such name.
fn parse_segment_table(name: &str) -> Option<(&'static str, u32)> {
    let table = SEGMENTED.into_iter().find(|table| name.starts_with(&format!("{table}_")))?;
    let segment_id = name[table.len() + 1..].parse().ok()?;
    (segment_table(table, segment_id) == name).then_some((table, segment_id))
}

impl Index {
    /// Name on a segment's partition.
    #[must_use]
    pub fn segment_name(&self, segment_id: u32) -> String {
        segment_object(&self.name, &self.table, segment_id)
    }

    fn is_unique(&self) -> bool {
        self.unique || self.primary_key
    }

    /// Statement that creates it on the parent alone: segments bring their own and are attached to it.
    ///
    /// It is valid at once where there are no partitions; otherwise once every partition's is attached.
    #[must_use]
    pub fn create_on_parent(&self) -> String {
        let (name, table, columns) = (quote(&self.name), qualified(&self.table), quote_all(&self.columns));
        if self.primary_key {
            return format!("alter table only {table} add constraint {name} primary key ({columns})");
        }
        let unique = if self.unique { "unique " } else { "" };
        format!("create {unique}index if not exists {name} on only {table} ({columns})")
    }

    /// Statement that builds it on a segment's partition; a primary key is a unique index until it is promoted.
    #[must_use]
    pub fn create_on_segment(&self, segment_id: u32) -> String {
        let unique = if self.is_unique() { "unique " } else { "" };
        let name = quote(&self.segment_name(segment_id));
        let table = qualified(&segment_table(&self.table, segment_id));
        format!("create {unique}index {name} on {table} ({})", quote_all(&self.columns))
    }

    /// Statement that makes the finished index of a segment its primary key, at once; `None` for other indexes.
    #[must_use]
    pub fn promote_on_segment(&self, segment_id: u32) -> Option<String> {
        let name = quote(&self.segment_name(segment_id));
        let table = qualified(&segment_table(&self.table, segment_id));
        self.primary_key
            .then(|| format!("alter table {table} add constraint {name} primary key using index {name}"))
    }

    /// Statement that drops it from a segment, finished or not. A promoted primary key must lose its constraint.
    #[must_use]
    pub fn drop_on_segment(&self, segment_id: u32) -> String {
        format!("drop index if exists {}", qualified(&self.segment_name(segment_id)))
    }

    /// Statement that attaches a segment's index to the parent's. `alter table … attach partition` does it by
    /// itself for those that exist by then.
    #[must_use]
    pub fn attach_on_segment(&self, segment_id: u32) -> String {
        let child = qualified(&self.segment_name(segment_id));
        format!("alter index {} attach partition {child}", qualified(&self.name))
    }

    /// Definition as the catalogue prints it.
    fn definition(&self, table: &str, name: &str, is_parent: bool) -> String {
        let unique = if self.is_unique() { "UNIQUE " } else { "" };
        let only = if is_parent { "ONLY " } else { "" };
        let primary_key = if self.primary_key { ", primary key" } else { "" };
        let columns = self.columns.join(", ");
        format!("CREATE {unique}INDEX {name} ON {only}{SCHEMA}.{table} USING btree ({columns}){primary_key}")
    }
}

impl ForeignKey {
    /// Name on a segment's partition.
    #[must_use]
    pub fn segment_name(&self, segment_id: u32) -> String {
        segment_object(&self.name, &self.table, segment_id)
    }

    /// The table that a segment's partition refers to: the same segment's, where that table is segmented.
    fn segment_references(&self, segment_id: u32) -> String {
        if SEGMENTED.contains(&self.references.as_str()) {
            segment_table(&self.references, segment_id)
        } else {
            self.references.clone()
        }
    }

    /// Statement that adds it to a segment without looking at the rows: new rows are checked from then on.
    #[must_use]
    pub fn add_on_segment(&self, segment_id: u32) -> String {
        format!(
            "alter table {} add constraint {} foreign key ({}) references {} ({}) not valid",
            qualified(&segment_table(&self.table, segment_id)),
            quote(&self.segment_name(segment_id)),
            quote_all(&self.columns),
            qualified(&self.segment_references(segment_id)),
            quote_all(&self.referenced_columns),
        )
    }

    /// Statement that checks the rows that were there before; readers and writers go on.
    #[must_use]
    pub fn validate_on_segment(&self, segment_id: u32) -> String {
        let table = qualified(&segment_table(&self.table, segment_id));
        format!("alter table {table} validate constraint {}", quote(&self.segment_name(segment_id)))
    }

    /// Statement that drops it from a segment.
    #[must_use]
    pub fn drop_on_segment(&self, segment_id: u32) -> String {
        let table = qualified(&segment_table(&self.table, segment_id));
        format!("alter table {table} drop constraint if exists {}", quote(&self.segment_name(segment_id)))
    }

    /// Definition in the words of [`CONSTRAINTS_SQL`].
    fn definition(&self, segment_id: u32) -> String {
        let (columns, referenced) = (self.columns.join(", "), self.referenced_columns.join(", "));
        format!(
            "foreign key ({columns}) references {SCHEMA}.{} ({referenced})",
            self.segment_references(segment_id)
        )
    }
}

/// Creates the declared indexes on the parents where they are missing.
///
/// # Errors
/// The server's.
pub async fn ensure_parents(client: &Client) -> Result<(), tokio_postgres::Error> {
    for index in &declared().indexes {
        let there =
            client.query_one("select to_regclass($1) is not null", &[&qualified(&index.name)]).await?;
        if !there.get::<_, bool>(0) {
            client.batch_execute(&index.create_on_parent()).await?;
        }
    }
    Ok(())
}

/// How the catalogue differs from the declared list, in one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The table or partition, without its schema.
    pub table: String,
    /// The index, constraint or table.
    pub object: String,
    /// In which way.
    pub kind: DifferenceKind,
}

/// Ways to differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceKind {
    /// Declared, but not there.
    Missing,
    /// There, but not declared.
    Extra {
        /// What it is.
        found: String,
    },
    /// There under its name, but otherwise.
    Different {
        /// What is declared.
        declared: String,
        /// What is there.
        found: String,
    },
    /// An index that no query uses, left by a build that failed.
    Invalid,
    /// An index of an attached segment that is no part of the parent's, or a partition that is not attached.
    NotAttached,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{SCHEMA}.{}: {}: ", self.table, self.object)?;
        match &self.kind {
            DifferenceKind::Missing => f.write_str("missing"),
            DifferenceKind::Extra { found } => write!(f, "not declared: {found}"),
            DifferenceKind::Different { declared, found } => write!(f, "is {found}, declared is {declared}"),
            DifferenceKind::Invalid => f.write_str("invalid"),
            DifferenceKind::NotAttached => f.write_str("not attached"),
        }
    }
}

/// Every index and foreign key of the segmented tables and their partitions: table, name, definition, validity,
/// parent index.
const INDEXES_SQL: &str = "
    select t.relname::text, i.relname::text,
           pg_get_indexdef(x.indexrelid) || case when x.indisprimary then ', primary key' else '' end,
           x.indisvalid and x.indisready and x.indislive,
           p.relname::text
    from pg_index x
    join pg_class i on i.oid = x.indexrelid
    join pg_class t on t.oid = x.indrelid
    left join pg_inherits h on h.inhrelid = x.indexrelid
    left join pg_class p on p.oid = h.inhparent
    where t.relnamespace = 'chain'::regnamespace and t.relname = any($1)";

const CONSTRAINTS_SQL: &str = "
    select t.relname::text, c.conname::text,
           'foreign key (' || (
               select string_agg(a.attname, ', ' order by k.position)
               from unnest(c.conkey) with ordinality k (attnum, position)
               join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.attnum
           ) || ') references ' || n.nspname || '.' || f.relname || ' (' || (
               select string_agg(a.attname, ', ' order by k.position)
               from unnest(c.confkey) with ordinality k (attnum, position)
               join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.attnum
           ) || ')' || case when c.condeferrable then ' deferrable' else '' end
           || case when (c.confupdtype, c.confdeltype, c.confmatchtype) = ('a', 'a', 's') then ''
                   else ' with actions' end
    from pg_constraint c
    join pg_class t on t.oid = c.conrelid
    join pg_class f on f.oid = c.confrelid
    join pg_namespace n on n.oid = f.relnamespace
    where c.contype = 'f' and t.relnamespace = 'chain'::regnamespace and t.relname = any($1)";

const PARTITIONS_SQL: &str = "
    select p.relname::text, t.relname::text
    from pg_inherits h
    join pg_class p on p.oid = h.inhparent
    join pg_class t on t.oid = h.inhrelid
    where p.relnamespace = 'chain'::regnamespace and p.relname = any($1)";

/// What is declared for one object.
struct Wanted {
    definition: String,
    /// Parent's index that it must be attached to.
    parent: Option<String>,
    /// Whether it may be missing: a live segment gets its foreign keys when it is complete.
    is_optional: bool,
}

/// Compares the declared list with the catalogue, for the parents and for every segment that readers see.
///
/// Whether a foreign key is validated yet is no difference; segments that are not attached are still being built and
/// are not looked at.
///
/// # Errors
/// The server's.
pub async fn catalogue_differences(client: &Client) -> Result<Vec<Difference>, tokio_postgres::Error> {
    let parents: Vec<String> = SEGMENTED.iter().map(ToString::to_string).collect();
    let attached_sql =
        "select segment_id, state = 'live' from ops.segments where state in ('attached', 'live')";
    let segments: Vec<(u32, bool)> = client
        .query(attached_sql, &[])
        .await?
        .iter()
        .map(|row| (row.get::<_, i32>(0).cast_unsigned(), row.get(1)))
        .collect();
    let mut differences = Vec::new();

    let partitions: BTreeMap<String, String> =
        client.query(PARTITIONS_SQL, &[&parents]).await?.iter().map(|row| (row.get(1), row.get(0))).collect();
    let expected_partitions: BTreeMap<String, &str> = segments
        .iter()
        .flat_map(|&(id, _)| SEGMENTED.map(|table| (segment_table(table, id), table)))
        .collect();
    for (name, table) in &expected_partitions {
        if partitions.get(name).map(String::as_str) != Some(*table) {
            let kind = DifferenceKind::NotAttached;
            differences.push(Difference { table: (*table).to_owned(), object: name.clone(), kind });
        }
    }
    for (name, table) in partitions.iter().filter(|(name, _)| !expected_partitions.contains_key(*name)) {
        let found = match parse_segment_table(name) {
            Some(_) => "partition of a segment that is not attached",
            None => "partition of no segment",
        };
        let kind = DifferenceKind::Extra { found: found.to_owned() };
        differences.push(Difference { table: table.clone(), object: name.clone(), kind });
    }

    let mut wanted = wanted_objects(&segments);
    let tables: Vec<String> = parents.into_iter().chain(expected_partitions.into_keys()).collect();
    let mut compare = |table: String, object: String, found: String, valid: bool, parent: Option<String>| {
        let kind = match wanted.remove(&(table.clone(), object.clone())) {
            None => DifferenceKind::Extra { found },
            Some(wanted) if wanted.definition != found => {
                DifferenceKind::Different { declared: wanted.definition, found }
            }
            Some(_) if !valid => DifferenceKind::Invalid,
            Some(wanted) if wanted.parent != parent => DifferenceKind::NotAttached,
            Some(_) => return,
        };
        differences.push(Difference { table, object, kind });
    };
    for row in client.query(INDEXES_SQL, &[&tables]).await? {
        compare(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    }
    for row in client.query(CONSTRAINTS_SQL, &[&tables]).await? {
        compare(row.get(0), row.get(1), row.get(2), true, None);
    }
    for ((table, object), _) in wanted.into_iter().filter(|(_, wanted)| !wanted.is_optional) {
        differences.push(Difference { table, object, kind: DifferenceKind::Missing });
    }
    differences.sort();
    Ok(differences)
}

/// All objects that should be there, by table and name, given the segments and whether each is live.
fn wanted_objects(segments: &[(u32, bool)]) -> BTreeMap<(String, String), Wanted> {
    let mut wanted = BTreeMap::new();
    let mut want = |table: String, name: String, definition: String, parent: Option<&str>, is_optional| {
        let parent = parent.map(str::to_owned);
        wanted.insert((table, name), Wanted { definition, parent, is_optional });
    };
    for index in &declared().indexes {
        let definition = index.definition(&index.table, &index.name, true);
        want(index.table.clone(), index.name.clone(), definition, None, false);
        for &(id, _) in segments {
            let (table, name) = (segment_table(&index.table, id), index.segment_name(id));
            let definition = index.definition(&table, &name, false);
            want(table, name, definition, Some(&index.name), false);
        }
    }
    for key in &declared().foreign_keys {
        for &(id, is_live) in segments {
            want(segment_table(&key.table, id), key.segment_name(id), key.definition(id), None, is_live);
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(name: &str) -> &'static Index {
        declared().indexes.iter().find(|index| index.name == name).unwrap()
    }

    #[test]
    fn the_declared_list_is_complete_and_well_named() {
        let objects = declared();
        assert_eq!((objects.indexes.len(), objects.foreign_keys.len()), (7, 3));
        for table in SEGMENTED {
            assert_eq!(objects.indexes.iter().filter(|it| it.table == table && it.primary_key).count(), 1);
        }
        let named = objects.indexes.iter().map(|it| (&it.name, &it.table));
        for (name, table) in named.chain(objects.foreign_keys.iter().map(|it| (&it.name, &it.table))) {
            assert!(SEGMENTED.contains(&table.as_str()) && name.starts_with(&format!("{table}_")), "{name}");
            // PostgreSQL cuts names at 63 bytes; a segment's number may grow to six digits.
            assert!(segment_object(name, table, 999_999).len() <= 63, "{name}");
        }
    }

    #[test]
    fn names_of_segments_carry_the_number_after_the_table() {
        assert_eq!(segment_table("outputs", 3), "outputs_0003");
        assert_eq!(segment_table("outputs", 12345), "outputs_12345");
        let name = index("outputs_script_hash_tx_num_idx").segment_name(3);
        assert_eq!(name, "outputs_0003_script_hash_tx_num_idx");
        assert_eq!(parse_segment_table("outputs_0003"), Some(("outputs", 3)));
        assert_eq!(parse_segment_table("outputs_3"), None);
        assert_eq!(parse_segment_table("outputs_old"), None);
    }

    #[test]
    fn statements_are_what_the_server_is_told() {
        let key = index("outputs_pkey");
        assert_eq!(
            key.create_on_parent(),
            r#"alter table only "chain"."outputs" add constraint "outputs_pkey" primary key ("tx_num", "vout")"#
        );
        assert_eq!(
            key.create_on_segment(3),
            r#"create unique index "outputs_0003_pkey" on "chain"."outputs_0003" ("tx_num", "vout")"#
        );
        assert_eq!(
            key.promote_on_segment(3).unwrap(),
            r#"alter table "chain"."outputs_0003" add constraint "outputs_0003_pkey" primary key using index "outputs_0003_pkey""#
        );
        let txid = index("transactions_txid_idx");
        assert_eq!(txid.promote_on_segment(3), None);
        assert_eq!(
            txid.create_on_parent(),
            r#"create index if not exists "transactions_txid_idx" on only "chain"."transactions" ("txid")"#
        );
        assert_eq!(
            declared().foreign_keys[1].add_on_segment(3),
            r#"alter table "chain"."outputs_0003" add constraint "outputs_0003_tx_num_fkey" foreign key ("tx_num") references "chain"."transactions_0003" ("tx_num") not valid"#
        );
        assert!(
            declared().foreign_keys[0]
                .add_on_segment(3)
                .contains(r#"references "chain"."blocks" ("height")"#)
        );
        assert_eq!(quote(r#"a"b"#), r#""a""b""#);
    }
}
