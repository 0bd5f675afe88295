// One small checkpoint, what an undisturbed repack makes of it, and the judgement over what a disturbed one has left.
// Threads: as the file systems that it is given.
#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "format/json.h"
#include "reshard/run/journal.h"
#include "reshard/run/repack.h"
#include "reshard/run/seal_parts.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/small_checkpoint.h"

namespace dspack::test {

class RepackLab {
 public:
  static constexpr const char* kOut = "/disk/models/packed";

  /// `parts`: how many share the work, one after the other, before they are joined; 0: one run does all of it.
  explicit RepackLab(unsigned jobs = 1, uint32_t parts = 0)
      : options_{.recipe = {},
                 .out = kOut,
                 .jobs = jobs,
                 .held_bytes = uint64_t{16} * kPageBytes,
                 .first_record_bytes = 5000},  // in the midst of matrices
        parts_(parts) {
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
    if (parts_ == 0) return reshard::repack(*outlook_, *repository_, options_, files, progress, {});
    for (uint32_t number = 1; number <= parts_; ++number) {
      const auto done = reshard::repack_part(*outlook_, *repository_, options_, {number, parts_}, files, progress, {});
      // When the joining has begun, a part says so and has nothing to do.
      const bool joined = !done && done.error().message.find("are being joined") != std::string::npos;
      const bool goes_on = !done && done.error().message.find("unfinished repacking") != std::string::npos;
      if (!done && !joined && !goes_on) return done.error();
    }
    return reshard::seal_parts(*outlook_, *repository_, options_, files, progress, {});
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
    for (const auto& [journal, text] : found) {
      if (!journal.starts_with(".reshard/") || !journal.ends_with("/journal")) continue;
      const auto load = reshard::parse_journal(text, identity_of(text));
      if (std::holds_alternative<reshard::JournalFresh>(load)) continue;
      const auto* loaded = std::get_if<reshard::JournalLoaded>(&load);
      if (loaded == nullptr) return journal + " is damaged";
      for (const auto& [file, record] : loaded->state.files) {
        const std::string& path = outlook_->plan.files[file].path;
        if (found.contains(path) && !whole_except(path)) return path + " is sealed and wrong";
      }
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
    auto json = format::parse_json(line.substr(std::min<size_t>(line.size(), 17)), format::kManifestDocument);
    return json ? std::move(json).value() : format::Json();
  }

  TempFolder source_;
  reshard::RepackOptions options_;
  uint32_t parts_;
  std::unique_ptr<format::Repository> repository_;
  std::unique_ptr<reshard::RepackOutlook> outlook_;
  std::map<std::string, std::string> whole_;
  uint64_t operations_ = 0;
};

}  // namespace dspack::test
