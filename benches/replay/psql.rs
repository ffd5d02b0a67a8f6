//! psql's `\copy` of the same bytes from files, four side by side: what most people would try first.

use std::io::Write;
use std::process::Stdio;

use anyhow::ensure;
use satgres::pg::segments::{copy_sql, create_table_sql};
use satgres::replay::ReplayOptions;
use satgres::rows::{COPY_HEADER, COPY_TRAILER, Table};
use tokio::process::Command;

use crate::floor::run_with;
use crate::lab::Lab;
use crate::lab::round::Round;
use crate::ready::{ReadyRows, ReadySegment};

/// Writes the files, then loads and restores once.
pub async fn run(lab: &Lab, rows: &ReadyRows, options: &ReplayOptions) -> anyhow::Result<Round> {
    let folder = tempfile::tempdir_in(lab.dir())?;
    let path = |segment: &ReadySegment, table: Table| {
        folder.path().join(format!("{}-{}", table.name(), segment.segment.id))
    };
    for segment in &rows.segments {
        for (table, rows) in Table::ALL.into_iter().zip(&segment.rows) {
            let mut file = std::io::BufWriter::new(std::fs::File::create(path(segment, table))?);
            file.write_all(&COPY_HEADER)?;
            rows.iter().try_for_each(|rows| file.write_all(rows))?;
            file.write_all(&COPY_TRAILER)?;
            file.into_inner()?.sync_all()?;
        }
    }
    let pool = lab.fresh_database().await?;
    let program = lab.bin_dir().join("psql");
    run_with(lab, &pool, rows, options, async |segment| {
        let mut running = Vec::new();
        for table in Table::ALL {
            let from = format!("from '{}'", path(segment, table).display());
            let copy = copy_sql(table, &segment.segment).replace("from stdin", &from);
            let create = create_table_sql(table, &segment.segment);
            let child = Command::new(&program)
                .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", "begin", "-c", &create, "-c"])
                .arg(format!("\\{copy}"))
                .args(["-c", "commit", &lab.url()])
                .stdin(Stdio::null())
                .spawn()?;
            running.push(child);
        }
        for mut child in running {
            let status = child.wait().await?;
            ensure!(status.success(), "psql ended with {status}");
        }
        Ok(())
    })
    .await
}
