#include "runtime/cli/verbs.h"

#include <fmt/format.h>

#include "format/cli/output.h"
#include "runtime/cli/model_options.h"
#include "runtime/cli/places.h"
#include "runtime/validation/comparer.h"
#include "runtime/validation/comparison.h"

namespace dspack::runtime {
namespace {

/// Returns 0 within the tolerance, 1 beyond it.
Result<int> run_compare(const CompareOptions& options, format::Process& process) {
  TRY(format::try_output(options.json_file));
  const std::stop_token stop = process.stop();
  TRY_ASSIGN(const Recording reference, Recording::open(format::posix_file_system(), options.reference));
  TRY_ASSIGN(const auto recorded, reference.input_ids());
  TRY_ASSIGN(std::vector<uint32_t> tokens, tokens_of(options.tokens, options.folder, options.load.remote, stop));
  if (tokens.empty() && !recorded) {
    return Error{
        ErrorKind::invalid,
        fmt::format("{}: it has no input_ids; give the tokens with --tokens, or -p with --raw", options.reference)};
  }
  if (tokens.empty()) tokens = *recorded;
  if (recorded && tokens != *recorded) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: it was recorded for other tokens than those of the command line; leave these out",
                             options.reference)};
  }
  TRY_ASSIGN(auto loaded, load_for(options.folder, options.load, tokens, stop));
  Comparer comparer(loaded->queue(), loaded->model().config(), reference, static_cast<uint32_t>(tokens.size()),
                    {.tolerance = options.tolerance, .inject = options.inject});
  TRY(run_traced(*loaded, tokens, comparer, stop));
  TRY_ASSIGN(const Comparison comparison, comparer.finish());
  format::print_out(report_text(comparison));
  if (!options.json_file.empty()) {
    format::Json json = report_json(comparison);
    json["tokens"] = tokens.size();
    json["inject"] = options.inject;
    TRY(format::write_output(format::posix_file_system(), options.json_file, format::canonical_json(json) + "\n"));
  }
  return comparison.within_tolerance() ? 0 : 1;
}

void add_compare_options(format::OptionTable& table, CompareOptions& options) {
  table.explain("Compares the model's modules with a recording of them.");
  table.footer(
      "Example:\n  dsrun compare ./ds-packed --reference run.safetensors\n\n"
      "The recording is made by dsrun record, or by hooks on another implementation: tensors <module>.input.0 and\n"
      "<module>.output (or .output.0), in F64, F32, BF16 or F16, or \"logits\" alone. The relative error is\n"
      "sum |a - b| / sum |b|. A module departs if its output's error exceeds the tolerance; the first one is named.\n"
      "Status: 0 within the tolerance, 1 beyond it or failed, 2 wrong usage.");
  add_folder(table, options.folder);
  table.add("--reference", "FILE.safetensors", options.reference, "The recording").required();
  add_pass_tokens(table, options.tokens);
  table.add("--tolerance", "X", options.tolerance, format::between(0.0, 1e9),
            "Relative error that is allowed (default: 1e-4; 0.125 where the recording is in BF16 or F16)");
  table.add("--json", "FILE", options.json_file, "Write all figures as JSON");
  table.dev_flag("inject", options.inject,
                 "give each module the recorded input, so that errors do not add up from one module to the next");
  add_pass_model_options(table, options.load);
}

}  // namespace

Result<void> CompareOptions::complete() {
  return check_model_options(load);
}

format::Verb compare_verb() {
  return format::make_verb("compare", "Compare every module with a recording", add_compare_options, run_compare);
}

}  // namespace dspack::runtime
