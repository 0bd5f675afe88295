#include "reshard/cli/commands.h"

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "format/cli/output.h"
#include "format/cli/process.h"
#include "format/cli/terminal_progress.h"
#include "reshard/inspect.h"
#include "reshard/repack.h"
#include "reshard/verify.h"

namespace dspack::reshard {
namespace {

using format::human_bytes;
using format::print_error;
using format::print_out;

constexpr uint64_t kMaxRecipeBytes = 1 << 20;

int fail(const Error& error) {
  print_error("reshard: " + format::printable(error.message));
  if (error.kind == ErrorKind::cancelled) print_error("reshard: run the same command again to go on");
  return format::exit_status(error);
}

/// A place and its catalogue.
struct Opened {
  std::unique_ptr<format::Repository> repository;
  format::Checkpoint checkpoint;
};

Result<Opened> open_place(const std::string& place, unsigned jobs, const Context& context) {
  TRY_ASSIGN(auto repository, open_repository(place, context.remote, format::posix_file_system()));
  TRY_ASSIGN(auto checkpoint, format::Checkpoint::open(*repository, jobs, context.stop));
  return Opened{std::move(repository), std::move(checkpoint)};
}

void print_outlook(const RepackOutlook& outlook, const format::Repository& repository) {
  const format::Checkpoint& source = outlook.source;
  print_out(fmt::format("source   {}: {} files, {} tensors, {} routed experts, {}\n", repository.description(),
                        source.files().size(), source.tensors().size(), source.experts().size(),
                        human_bytes(source.payload_bytes())));
  print_out(fmt::format("to read  {} bytes in {} requests of whole shards, {} other files ({})\n",
                        outlook.plan.source_bytes, source.files().size(), outlook.companions.size(),
                        human_bytes(outlook.companion_bytes)));
  print_out(
      fmt::format("to write {} bytes in {} weight files\n", outlook.plan.output_bytes, outlook.plan.files.size()));
}

Result<Recipe> recipe_of(const RepackFlags& flags) {
  if (flags.recipe.empty()) {
    TRY_ASSIGN(const Grouping by, parse_grouping(flags.by));
    return Recipe{.by = by};
  }
  TRY_ASSIGN(const std::string text, format::read_text(format::posix_file_system(), flags.recipe, kMaxRecipeBytes));
  auto recipe = parse_recipe(text);
  return recipe ? std::move(recipe) : recipe.error().in(flags.recipe);
}

Result<int> repack_or_error(const RepackFlags& flags, const Context& context) {
  TRY_ASSIGN(const Recipe recipe, recipe_of(flags));
  TRY_ASSIGN(const auto repository, open_repository(flags.source, context.remote, format::posix_file_system()));
  const RepackOptions options{.recipe = recipe, .out = flags.out, .jobs = flags.jobs};
  TRY_ASSIGN(const RepackOutlook outlook, prepare_repack(*repository, options, context.stop));
  format::TerminalProgress progress(stderr, format::stderr_is_terminal());
  for (const std::string& warning : outlook.source.warnings())
    progress.note("warning: " + format::printable(warning));
  if (flags.dry_run) {
    print_outlook(outlook, *repository);
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  TRY_ASSIGN(const RepackOutcome outcome,
             repack(outlook, *repository, options, format::posix_file_system(), progress, context.stop));
  if (outcome == RepackOutcome::already_complete) {
    print_out(fmt::format("{}: complete already\n", flags.out));
    return 0;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_out(fmt::format(
      "{}: sealed, {} tensors ({}) in {} weight files, {} routed experts; {:.1f} s, {}/s\n", flags.out,
      outlook.source.tensors().size(), human_bytes(outlook.source.payload_bytes()), outlook.plan.files.size(),
      outlook.source.experts().size(), seconds,
      human_bytes(static_cast<uint64_t>(static_cast<double>(outlook.plan.source_bytes) / std::max(seconds, 1e-9)))));
  return 0;
}

int report_findings(const std::string& folder, const VerifyReport& report, std::string_view what) {
  for (const std::string& finding : report.findings)
    print_out(format::printable(finding) + "\n");
  if (report.findings.empty()) {
    print_out(fmt::format("{}: {}: {} files, {} tensors, {}\n", folder, what, report.files, report.tensors,
                          human_bytes(report.bytes)));
    return 0;
  }
  const std::string count =
      report.findings.size() == 1 ? "1 difference" : fmt::format("{} differences", report.findings.size());
  print_error(fmt::format("reshard: {}: {} found; repack it, or replace what is named", folder, count));
  return 1;
}

Result<int> verify_or_error(const VerifyFlags& flags, const Context& context) {
  TRY_ASSIGN(const Opened packed, open_place(flags.folder, flags.jobs, context));
  if (!packed.checkpoint.manifest()) {
    return Error{ErrorKind::invalid,
                 fmt::format("{}: not a packed repository (it has no {})", flags.folder, format::kManifestPath)};
  }
  format::TerminalProgress progress(stderr, format::stderr_is_terminal());
  TRY_ASSIGN(const VerifyReport digests,
             verify_digests(*packed.repository, packed.checkpoint, flags.jobs, progress, context.stop));
  const int status = report_findings(flags.folder, digests, "every digest fits");
  if (flags.source.empty()) return status;
  TRY_ASSIGN(const Opened source, open_place(flags.source, flags.jobs, context));
  TRY_ASSIGN(const VerifyReport bytes, verify_against_source(*packed.repository, packed.checkpoint, *source.repository,
                                                             source.checkpoint, flags.jobs, progress, context.stop));
  return std::max(status, report_findings(flags.folder, bytes, "equal to the source, byte for byte"));
}

}  // namespace

int run_repack(const RepackFlags& flags, const Context& context) {
  const auto status = repack_or_error(flags, context);
  return status ? *status : fail(status.error());
}

int run_verify(const VerifyFlags& flags, const Context& context) {
  const auto status = verify_or_error(flags, context);
  return status ? *status : fail(status.error());
}

int run_inspect(const InspectFlags& flags, const Context& context) {
  const auto opened = open_place(flags.source, flags.jobs, context);
  if (!opened) return fail(opened.error());
  const std::string text = flags.json ? inspect_json(opened->checkpoint, *opened->repository)
                                      : inspect_text(opened->checkpoint, *opened->repository);
  print_out(text);
  for (const std::string& warning : opened->checkpoint.warnings())
    print_error("warning: " + format::printable(warning));
  return 0;
}

}  // namespace dspack::reshard
