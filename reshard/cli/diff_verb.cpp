// `reshard diff`: the differences between two places.
#include <fmt/format.h>

#include "format/cli/output.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/verbs/diff.h"

namespace dspack::reshard {
namespace {

struct DiffFlags {
  NetworkFlags network;
  std::string a;
  std::string b;
  bool json = false;
  bool tensors_only = false;
  unsigned jobs = 8;
};

Result<int> run_diff(const DiffFlags& flags, format::Process& process) {
  const Context context = make_context(process, flags.network);
  TRY_ASSIGN(const Opened a, open_place(flags.a, flags.jobs, context));
  TRY_ASSIGN(const Opened b, open_place(flags.b, flags.jobs, context));
  TRY_ASSIGN(const DiffReport report,
             diff({*a.repository, a.checkpoint}, {*b.repository, b.checkpoint},
                  {.companions = !flags.tensors_only, .jobs = flags.jobs}, context.progress, context.stop));
  if (flags.json)
    format::print_json(diff_json(report));
  else
    format::print_out(diff_text(report));
  // Say so for both: diff takes the manifest's digests, so it does not notice damaged files.
  const bool of_a = a.checkpoint.manifest().has_value();
  const bool of_b = b.checkpoint.manifest().has_value();
  if (!flags.json && (of_a || of_b)) {
    format::print_out(
        fmt::format("the digests of {} were taken from the manifest, not computed; reshard verify checks {}\n",
                    of_a && of_b ? "A and B"
                    : of_a       ? "A"
                                 : "B",
                    of_a && of_b ? "them" : "it"));
  }
  return report.equal() ? 0 : 1;
}

void add_diff_options(format::OptionTable& table, DiffFlags& flags) {
  table.add("A", "", flags.a, "Local folder, http(s):// folder or org/name[@revision]").required();
  table.add("B", "", flags.b, "Likewise").required();
  table.flag("--json", flags.json, "One JSON object a difference");
  table.flag("--tensors-only", flags.tensors_only, "Leave out config, tokenizer and other files without weights");
  add_jobs(table, flags.jobs, "Files read at a time");
  add_network_options(table, flags.network);
  table.footer(
      "Digests of a packed repository are trusted (verify checks them); of an ordinary checkpoint only tensors that "
      "need\n"
      "it are read. The index is not compared: it only locates tensors.\n"
      "Exit status: 0 equal, 1 different, or failed (stderr has the reason).");
}

}  // namespace

format::Verb diff_verb() {
  return format::make_verb("diff", "Compare two checkpoints, packed or ordinary, tensor by tensor", add_diff_options,
                           run_diff);
}

}  // namespace dspack::reshard
