// `reshard repair`: repairs a complete repository by its manifest, an unfinished one by its journal.
#include <chrono>

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/base/seconds.h"
#include "format/cli/output.h"
#include "format/compressed/expanding_repository.h"
#include "format/source/local_repository.h"
#include "reshard/cli/places.h"
#include "reshard/cli/verbs.h"
#include "reshard/run/run_state.h"
#include "reshard/verbs/repair/repair_unfinished.h"
#include "reshard/verbs/verify_source.h"

namespace dspack::reshard {
namespace {

struct RepairFlags {
  NetworkFlags network;
  std::string folder;
  std::string source;  // empty: the place that the repository was packed from
  bool quick = false;  // check only presence and size
  unsigned jobs = 4;
};

using format::human_bytes;
using format::print_out;
using Clock = std::chrono::steady_clock;

std::string count_of(uint64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

/// Prints the report; returns the exit status.
int print_report(const RepairFlags& flags, const RepairReport& report, Clock::time_point begin) {
  for (const std::string& line : report.left)
    print_out(printable(line) + "\n");
  if (!report.left.empty()) {
    format::print_error(
        fmt::format("reshard: {}: {} could not be recovered; copy the named files from another copy of the packed "
                    "repository, or give one with --source",
                    flags.folder, count_of(report.left.size(), "file")));
    return 1;
  }
  const double seconds = seconds_since(begin);
  if (report.damaged_files == 0) {
    const std::string_view what = flags.quick ? "is there, by name and size" : "fits its digest";
    print_out(fmt::format("{}: every file {}: {}, nothing to repair; {}\n", flags.folder, what,
                          count_of(report.checked_files, "file"), duration_words(seconds)));
    return 0;
  }
  print_out(fmt::format("{}: repaired, {} of {} ({} fetched, {} read for them); {}\n", flags.folder,
                        report.damaged_files, count_of(report.checked_files, "file"),
                        count_of(report.fetched_tensors, "tensor"), human_bytes(report.fetched_bytes),
                        duration_words(seconds)));
  return 0;
}

Result<int> repair_complete(const RepairFlags& flags, const RepairOptions& options, const Context& context) {
  const auto begin = Clock::now();
  format::FileSystem& files = format::posix_file_system();
  auto folder = format::make_expanding_repository(format::make_local_repository(flags.folder, files));
  auto packed = format::Checkpoint::open(*folder, flags.jobs, context.stop);
  if (!packed) {
    const Error& error = packed.error();
    if (error.kind != ErrorKind::corrupt && error.kind != ErrorKind::invalid) return error;
    return Error{
        error.kind,
        error.message +
            "; copy this file from another copy of the packed repository, with which repair compares everything"};
  }
  const OpenSource open_source = [&]() -> Result<std::unique_ptr<format::Repository>> {
    std::string place = flags.source;
    if (place.empty()) {
      auto origin = origin_place(*packed->manifest());
      if (!origin)
        return Error{ErrorKind::invalid, fmt::format("{}: does not record where it was packed from; give the place "
                                                     "with --source, or another copy of the packed repository",
                                                     flags.folder)};
      place = *origin;
    }
    TRY_ASSIGN(auto source, open_repository(place, context.remote, files, context.stop));
    return format::make_expanding_repository(std::move(source));
  };
  TRY_ASSIGN(const RepairReport report, repair(*packed, options, open_source, files, context.progress, context.stop));
  return print_report(flags, report, begin);
}

Result<int> repair_begun(const RepairFlags& flags, const RepairOptions& options, const JournalHead& begun,
                         const Context& context) {
  const auto begin = Clock::now();
  TRY_ASSIGN(const std::string source, begun_source(flags.folder, flags.source, begun));
  auto recipe = parse_recipe(begun.recipe.dump());
  if (!recipe) return recipe.error().in(flags.folder + ": the recipe in its journal");
  format::RemoteOptions remote = context.remote;
  remote.hub_pinned = begun.origin;
  TRY_ASSIGN(const auto repository, open_repository(source, remote, format::posix_file_system(), context.stop));
  const RepackOptions repack_options{.recipe = std::move(*recipe), .out = flags.folder, .jobs = flags.jobs};
  TRY_ASSIGN(const RepackOutlook outlook, prepare_repack(*repository, repack_options, context.stop, &context.progress));
  context.progress.finished();
  context.progress.note(flags.folder + ": is unfinished; what exists is repaired, then the rest is completed");
  TRY_ASSIGN(const RepairReport report, repair_unfinished(outlook, *repository, repack_options, options.scrutiny,
                                                          format::posix_file_system(), context.progress, context.stop));
  print_out(fmt::format("{}: sealed; {} repaired before ({} fetched, {} read for them); {}\n", flags.folder,
                        count_of(report.damaged_files, "file"), count_of(report.fetched_tensors, "tensor"),
                        human_bytes(report.fetched_bytes), duration_words(seconds_since(begin))));
  return 0;
}

Result<int> run_repair(const RepairFlags& flags, format::Process& process) {
  const Context context = make_context(process, flags.network);
  format::FileSystem& files = format::posix_file_system();
  const format::Path folder = flags.folder;
  const RepairOptions options{
      .folder = folder, .scrutiny = flags.quick ? Scrutiny::outside : Scrutiny::bytes, .jobs = flags.jobs};
  TRY_ASSIGN(const auto info, files.stat(folder));
  if (!info || !info->is_directory)
    return Error{ErrorKind::not_found,
                 flags.folder + ": not a folder on this machine; only local folders can be repaired"};
  TRY_ASSIGN(const auto manifest, files.stat(folder / format::kManifestPath));
  if (manifest) return repair_complete(flags, options, context);
  TRY_ASSIGN(const auto begun, unfinished_work(folder, files));
  if (begun) return repair_begun(flags, options, *begun, context);
  return Error{
      ErrorKind::not_found,
      fmt::format(
          "{}: has neither a readable {}, which lists its files, nor a readable journal of an unfinished repack; if it "
          "is lost, copy it from another copy of the packed repository, else pack the source again",
          flags.folder, format::kManifestPath)};
}

void add_repair_options(format::OptionTable& table, RepairFlags& flags) {
  table.add("DIR", "", flags.folder, "Folder of a packed repository, complete or unfinished").required();
  table.add("--source", "SOURCE", flags.source,
            "What it was packed from, or another copy of the packed repository: folder, http(s):// folder or "
            "org/name[@revision]. Default: the repository on the Hub, and the commit, that it was packed from");
  table.flag("--quick", flags.quick, "Check only that files exist and have their size; read none of them");
  add_jobs(table, flags.jobs, "Files read at a time");
  add_network_options(table, flags.network);
  table.footer(
      "Compares every file with its digest, and reads from the source only tensors that are missing or differ. A file "
      "gets\n"
      "its name back once it has the digest that was sealed. Of an unfinished repository the finished files are\n"
      "repaired, then the rest is completed. After a kill or an interruption the same command resumes.\n"
      "Exit status: 0 everything is as it was sealed, 1 something could not be recovered (named on stdout or stderr).");
}

}  // namespace

format::Verb repair_verb() {
  return format::make_verb("repair", "Fetch lost or damaged data of a packed repository again", add_repair_options,
                           run_repair);
}

}  // namespace dspack::reshard
