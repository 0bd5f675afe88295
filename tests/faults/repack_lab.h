// One small checkpoint, what an undisturbed repack makes of it, and the judgement over what a disturbed one has left.
// Threads: as the file systems that it is given.
#pragma once

#include <map>
#include <string>

#include "reshard/journal.h"
#include "reshard/repack.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {

class RepackLab {
 public:
  static constexpr const char* kOut = "/disk/models/packed";

  explicit RepackLab(unsigned jobs = 1) : options_{.recipe = {}, .out = kOut, .jobs = jobs} {
    SmallCheckpoint().write(source_);
    repository_ = open_repository(source_.path().string(), {}, format::posix_file_system()).value();
    outlook_ = std::make_unique<reshard::RepackOutlook>(reshard::prepare_repack(*repository_, options_, {}).value());
    const auto disk = fresh_disk();
    FaultyFileSystem counting(*disk);
    DSPACK_CHECK(run(counting).has_value(), "the undisturbed run failed");
    operations_ = counting.operations();
    whole_ = disk->tree(kOut);
    DSPACK_CHECK(whole_.contains("manifest.json"), "the undisturbed run made nothing");
  }

  /// A disk with a durable folder to make the output in.
  [[nodiscard]] static std::unique_ptr<CrashFileSystem> fresh_disk() {
    auto disk = std::make_unique<CrashFileSystem>();
    DSPACK_CHECK(disk->make_folders("/disk/models").has_value() && disk->sync_folder("/").has_value() &&
                     disk->sync_folder("/disk").has_value(),
                 "the test's disk cannot be made");
    return disk;
  }

  [[nodiscard]] Result<reshard::RepackOutcome> run(format::FileSystem& files) const {
    format::SilentProgress progress;
    return reshard::repack(*outlook_, *repository_, options_, files, progress, {});
  }

  /// What of an unfinished output is wrongly taken for done; empty: nothing.
  [[nodiscard]] std::string wrongly_sealed(const CrashFileSystem& disk) const {
    const auto found = disk.tree(kOut);
    const auto whole_except = [&](const std::string& path) {
      const auto wanted = whole_.find(path);
      return wanted != whole_.end() && wanted->second == found.at(path);
    };
    if (found.contains("manifest.json")) {
      for (const auto& [path, bytes] : whole_) {
        if (!found.contains(path) || !whole_except(path)) return path + " does not fit the manifest";
      }
    }
    const auto journal = found.find(".reshard/journal");
    if (journal == found.end()) return "";
    const auto load = reshard::parse_journal(journal->second, identity_of(journal->second));
    const auto* loaded = std::get_if<reshard::JournalLoaded>(&load);
    if (loaded == nullptr) return std::holds_alternative<reshard::JournalFresh>(load) ? "" : "the journal is damaged";
    for (const auto& [file, record] : loaded->state.files) {
      const std::string& path = outlook_->plan.files[file].path;
      if (found.contains(path) && !whole_except(path)) return path + " is sealed and wrong";
    }
    return "";
  }

  /// Runs to the end; why the result is not that of an undisturbed run, or empty.
  [[nodiscard]] std::string finish(CrashFileSystem& disk) const {
    if (std::string wrong = wrongly_sealed(disk); !wrong.empty()) return wrong;
    const auto outcome = run(disk);
    if (!outcome) return "the next run stopped: " + outcome.error().message;
    return difference(disk);
  }

  [[nodiscard]] std::string difference(const CrashFileSystem& disk) const {
    const auto found = disk.tree(kOut);
    for (const auto& [path, bytes] : whole_) {
      if (!found.contains(path)) return path + " is missing";
      if (found.at(path) != bytes) return path + " differs";
    }
    for (const auto& [path, bytes] : found) {
      if (!whole_.contains(path)) return path + " is left behind";
    }
    return "";
  }

  [[nodiscard]] const std::map<std::string, std::string>& whole() const { return whole_; }
  [[nodiscard]] const reshard::RepackOutlook& outlook() const { return *outlook_; }
  /// Operations of an undisturbed run; exact for one job.
  [[nodiscard]] uint64_t operations() const { return operations_; }

 private:
  /// The journal's own first record: whether it is this run's is for the run to judge.
  static format::Json identity_of(std::string_view journal) {
    const std::string_view line = journal.substr(0, journal.find('\n'));
    auto json = format::parse_json(line.substr(std::min<size_t>(line.size(), 17)));
    return json ? std::move(json).value() : format::Json();
  }

  TempFolder source_;
  reshard::RepackOptions options_;
  std::unique_ptr<format::Repository> repository_;
  std::unique_ptr<reshard::RepackOutlook> outlook_;
  std::map<std::string, std::string> whole_;
  uint64_t operations_ = 0;
};

}  // namespace dspack::test
