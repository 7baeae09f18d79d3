//! One page that needs nothing else: style, plots and tables in one file.
//!
//! ```text
//!   facts (command, machine, durability …) │ plots │ tables ──► <html> … </html>
//! ```

use super::svg::escaped;

/// Plots with the table that they are drawn from.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Its heading.
    pub title: &'static str,
    /// Plots, as SVG.
    pub figures: Vec<String>,
    /// Names of the table's columns.
    pub header: Vec<String>,
    /// Its rows.
    pub rows: Vec<Vec<String>>,
}

const STYLE: &str = "\
body{font:15px/1.45 system-ui,sans-serif;color:#1a1a1a;background:#fff;max-width:1200px;\
margin:2em auto;padding:0 1em}\
h1{font-size:1.5em;margin-bottom:.1em}h2{font-size:1.15em;margin-top:1.6em}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15em 1em;font-size:.92em}\
dt{color:#666}dd{margin:0;overflow-wrap:anywhere}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:1em}\
svg{width:100%;height:auto}.grid{stroke:#ddd}.tick{font-size:11px;fill:#555}\
.axis{font-size:12.5px;fill:#222}.shade{fill:#f3b5a5;opacity:.35}\
.legend{font-size:.88em;margin:.1em 0 0 4em}.legend span{margin-right:1em}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;\
font-size:.88em}th,td{padding:.22em .5em;text-align:right;white-space:nowrap}\
th{border-bottom:1px solid #999;color:#444}tr:nth-child(even) td{background:#f6f6f6}\
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2),td:last-child{text-align:left}";

/// The page.
pub fn page(title: &str, about: &str, facts: &[(String, String)], sections: &[Section]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{0}</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{0}</h1>\n<p>{1}</p>\n<dl>\n",
        escaped(title),
        escaped(about)
    );
    for (name, value) in facts.iter().filter(|fact| !fact.1.is_empty()) {
        out.push_str(&format!(
            "<dt>{}</dt><dd>{}</dd>\n",
            escaped(name),
            escaped(value)
        ));
    }
    out.push_str("</dl>\n");
    for section in sections {
        out.push_str(&format!(
            "<h2>{}</h2>\n<div class=\"charts\">\n",
            escaped(section.title)
        ));
        for one in &section.figures {
            out.push_str(&format!("<figure>{one}</figure>\n"));
        }
        out.push_str("</div>\n<div class=\"wide\"><table>\n<tr>");
        for name in &section.header {
            out.push_str(&format!("<th>{}</th>", escaped(name)));
        }
        out.push_str("</tr>\n");
        for row in &section.rows {
            out.push_str("<tr>");
            for cell in row {
                out.push_str(&format!("<td>{}</td>", escaped(cell)));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</table></div>\n");
    }
    out.push_str("</body></html>\n");
    out
}
