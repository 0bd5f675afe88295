// `reshard inspect`: describes the contents of a place as text, as JSON lines, or as a page.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/verbs/inspect.h"

namespace dspack::reshard {
namespace {

struct InspectFlags {
  NetworkFlags network;
  std::string source;
  bool json = false;
  std::string html;                    // output file, "-" for stdout; empty: no page
  std::optional<format::Grouping> by;  // the grouping that the page compares with; unset: by expert
  unsigned jobs = 16;
};

using format::Path;

/// A page can be a new file or replace one; checked before anything is read over a network.
Result<void> check_page_place(const std::string& file, format::FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(file));
  if (there && !there->is_regular) {
    return Error{ErrorKind::conflict, fmt::format("{}: exists and is not an ordinary file; choose another name", file)};
  }
  return format::try_output(file);
}

void print_warnings(const format::Checkpoint& checkpoint) {
  for (const std::string& warning : checkpoint.warnings())
    format::print_error("warning: " + warning);
}

Result<int> write_page(const InspectFlags& flags, const Context& context) {
  const bool to_stdout = flags.html == "-";
  format::FileSystem& files = format::posix_file_system();
  if (!to_stdout) TRY(check_page_place(flags.html, files));
  TRY_ASSIGN(const Opened opened, open_place(flags.source, flags.jobs, context));
  TRY_ASSIGN(const std::string page, inspect_html(opened.checkpoint, *opened.repository, flags.by, context.stop));
  print_warnings(opened.checkpoint);
  if (to_stdout) {
    format::print_data(page);
    return 0;
  }
  TRY(format::write_output(files, flags.html, page));
  format::print_out(fmt::format("{}: {} of {} tensors ({}); open it in a browser\n", flags.html,
                                format::human_bytes(page.size()), opened.checkpoint.tensors().size(), flags.source));
  return 0;
}

Result<int> write_text(const InspectFlags& flags, const Context& context) {
  TRY_ASSIGN(const Opened opened, open_place(flags.source, flags.jobs, context));
  if (flags.json)
    format::print_json(inspect_json(opened.checkpoint, *opened.repository));
  else
    format::print_out(inspect_text(opened.checkpoint, *opened.repository));
  print_warnings(opened.checkpoint);
  return 0;
}

Result<int> run_inspect(const InspectFlags& flags, format::Process& process) {
  const Context context = make_context(process, flags.network);
  return flags.html.empty() ? write_text(flags, context) : write_page(flags, context);
}

void add_inspect_options(format::OptionTable& table, InspectFlags& flags) {
  table.add("SOURCE", "", flags.source, "Local folder, http(s):// folder or org/name[@revision]").required();
  auto json = table.flag("--json", flags.json, "One JSON object a tensor: name, dtype, shape, url or file, range");
  auto html = table.add("--html", "FILE", flags.html,
                        "Write one self-contained page for a browser: a map of layers and experts, totals, "
                        "and where each expert's bytes lie before and after packing; \"-\" is stdout");
  html.excludes(json);
  table
      .add("--by", "GROUPING", flags.by, format::parse_grouping,
           "With --html, for a checkpoint that is not packed: the grouping that the page shows as \"after\". Default: "
           "expert")
      .needs(html);
  add_jobs(table, flags.jobs, "Headers read at a time");
  add_network_options(table, flags.network);
}

}  // namespace

format::Verb inspect_verb() {
  return format::make_verb("inspect", "Show what a checkpoint or packed repository holds", add_inspect_options,
                           run_inspect);
}

}  // namespace dspack::reshard
