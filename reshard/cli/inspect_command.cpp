// `reshard inspect`: what a place holds, as text, as JSON lines, or as a page.
#include "reshard/cli/inspect_command.h"

#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/terminal_progress.h"
#include "reshard/cli/opened.h"
#include "reshard/verbs/inspect.h"
#include "reshard/verbs/inspect_html.h"

namespace dspack::reshard {
namespace {

using format::Path;

/// A page can go to a new file or replace one; asked before anything is read across a network.
Result<void> check_page_place(const std::string& file, format::FileSystem& files) {
  TRY_ASSIGN(const auto there, files.stat(file));
  if (there && !there->is_regular) {
    return Error{ErrorKind::conflict, fmt::format("{}: exists and is not an ordinary file; choose another name", file)};
  }
  const Path folder = Path(file).has_parent_path() ? Path(file).parent_path() : Path(".");
  TRY_ASSIGN(const auto parent, files.stat(folder));
  if (parent && parent->is_directory) return {};
  return Error{ErrorKind::not_found,
               fmt::format("{}: the folder {} does not exist; create it first", file, folder.string())};
}

void print_warnings(const format::Checkpoint& checkpoint) {
  for (const std::string& warning : checkpoint.warnings())
    format::print_error("warning: " + warning);
}

Result<int> write_page(const InspectFlags& flags, const Context& context) {
  const bool to_stdout = flags.html == "-";
  format::FileSystem& files = format::posix_file_system();
  if (!to_stdout) TRY(check_page_place(flags.html, files));
  std::optional<format::Grouping> by;
  if (!flags.by.empty()) {
    TRY_ASSIGN(by, format::parse_grouping(flags.by));
  }
  TRY_ASSIGN(const Opened opened, open_place(flags.source, flags.jobs, context));
  TRY_ASSIGN(const std::string page, inspect_html(opened.checkpoint, *opened.repository, by, context.stop));
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

}  // namespace

CLI::App* declare_inspect(CLI::App& app, InspectFlags& flags, NetworkFlags& network) {
  CLI::App* verb = app.add_subcommand("inspect", "Show what a checkpoint or packed repository holds");
  verb->add_option("SOURCE", flags.source, "Local folder, http(s):// folder or org/name[@revision]")->required();
  auto* json = verb->add_flag("--json", flags.json, "One JSON object a tensor: name, dtype, shape, url or file, range");
  auto* html = verb->add_option("--html", flags.html,
                                "Write one page for a browser, which needs nothing else: a map of layers and experts, "
                                "totals, and where each expert's bytes lie before and after packing; \"-\" is stdout")
                   ->excludes(json)
                   ->type_name("FILE");
  verb->add_option("--by", flags.by,
                   "With --html, for a checkpoint that is not packed: the grouping that the page shows as \"after\". "
                   "Default: expert")
      ->needs(html)
      ->check(is_grouping())
      ->type_name("GROUPING");
  add_jobs(*verb, flags.jobs, "Headers read at a time");
  add_network_options(*verb, network);
  return verb;
}

int run_inspect(const InspectFlags& flags, const Context& context) {
  return status_of(flags.html.empty() ? write_text(flags, context) : write_page(flags, context));
}

}  // namespace dspack::reshard
