// `reshard link`: lays a packed repository out as vLLM, SGLang and others expect a checkpoint.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/run/output_folder.h"
#include "reshard/verbs/link.h"

namespace dspack::reshard {
namespace {

struct LinkFlags {
  std::string folder;
  std::string out;
};

Result<int> run_link(const LinkFlags& flags, format::Process& process) {
  const Context context = make_context(process);
  format::FileSystem& files = format::posix_file_system();
  TRY_ASSIGN(const auto repository, open_repository(flags.folder, context.remote, files));
  if (repository->kind() != format::RepositoryKind::local) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: links lead to files of this machine; fetch the repository first", flags.folder)};
  }
  TRY(check_apart(*repository, flags.out));
  TRY_ASSIGN(const Opened packed, open_packed(flags.folder, 1, context));
  const auto plan = plan_links(packed.checkpoint);
  if (!plan) return plan.error().in(flags.folder);
  TRY(check_present(*plan, *packed.checkpoint.manifest(), flags.folder, files));
  TRY_ASSIGN(const LinkOutcome outcome, make_links(*plan, flags.folder, flags.out, files));
  for (const std::string& warning : plan->warnings)
    format::print_error("warning: " + warning);
  const std::string what = fmt::format("links to {} weight files and {} others of {}", plan->weights,
                                       plan->links.size() - plan->weights, flags.folder);
  switch (outcome) {
    case LinkOutcome::made: format::print_out(fmt::format("{}: {}\n", flags.out, what)); break;
    case LinkOutcome::updated: format::print_out(fmt::format("{}: brought up to date: {}\n", flags.out, what)); break;
    case LinkOutcome::already_there: format::print_out(fmt::format("{}: has the {} already\n", flags.out, what)); break;
  }
  return 0;
}

void add_link_options(format::OptionTable& table, LinkFlags& flags) {
  table.add("DIR", "", flags.folder, "Packed repository, a local folder").required();
  table.add("--out", "FLAT", flags.out, "Folder for the links; a result of an earlier run is brought up to date")
      .required();
  table.footer(
      "The links are relative: move both folders together, and mount both in a container.\n"
      "transformers needs no links; it opens the packed repository as it is.");
}

}  // namespace

format::Verb link_verb() {
  return format::make_verb("link", "Make a flat folder of links that vLLM and SGLang open as a checkpoint",
                           add_link_options, run_link);
}

}  // namespace dspack::reshard
