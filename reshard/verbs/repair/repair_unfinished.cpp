#include "reshard/verbs/repair/repair_unfinished.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "format/json.h"
#include "format/record_log.h"
#include "format/source/local_repository.h"
#include "reshard/run/run_state.h"
#include "reshard/verbs/repair/mender.h"
#include "reshard/verbs/verify.h"

namespace dspack::reshard {
namespace {

using format::Path;

/// Which records of a journal to keep.
struct Kept {
  std::set<uint64_t> again{};  // shards to read again: drop all their records
  bool file_hashes = true;     // keep the digests of files' beginnings
};

/// The valid lines that follow one another, without records to be dropped. A torn tail is dropped too.
std::string sound_lines(std::string_view text, const Kept& keep) {
  std::string kept;
  std::map<uint64_t, uint64_t> begun;  // copies of unfinished shards in the records kept so far
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const auto take = [&](const format::Json& record) -> Result<void> {
      const auto done = format::json_uint(record, "shard");
      const auto shard = done ? done : format::json_uint(record, "begun");
      if (shard && keep.again.contains(*shard)) return {};
      if (done) begun.erase(*done);
      if (shard && !done) {
        const auto first = format::json_uint(record, "first");
        const auto tensors = format::json_array(record, "tensors");
        const auto at = format::json_uint(record, "at");
        uint64_t& copies = begun[*shard];
        if (!at || !first || !tensors || (*at != 0 && *first != copies)) return {};
        copies = *at == 0 ? 0 : copies + (*tensors)->size();
      }
      if (keep.file_hashes || !record.contains("hashes")) {
        kept += line;
        return {};
      }
      format::Json without = record;
      without.erase("hashes");
      kept += journal_line(without);
      return {};
    };
    (void)format::scan_records(line, take);
  }
  return kept;
}

Result<void> rewrite(const Path& journal, const Kept& keep, format::FileSystem& files) {
  auto text = read_text(files, journal, format::kMaxJournalBytes);
  if (!text && text.error().kind == ErrorKind::not_found) return {};
  if (!text) return text.error();
  std::string kept = sound_lines(*text, keep);
  if (kept.empty()) return {};  // nothing was recorded yet
  // Without its first record the owner of the work is unknown.
  const bool has_head = text->starts_with(kept.substr(0, kept.find('\n') + 1));
  if (!has_head) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: its first record, which says what was begun here, is damaged; remove this file and "
                             "give the command again that began the work (finished files are read anew)",
                             journal.string())};
  }
  if (kept == *text) return {};
  // Bytes that are read again may differ from those in the files' digests, so drop these.
  kept = sound_lines(*text, {.again = keep.again, .file_hashes = false});
  return format::write_sealed(files, journal, kept);
}

/// Whether the written beginning of a tensor under way is on disk and matches its record.
Result<bool> has_beginning(const RunScope& scope, const Plan& plan, const Copy& copy, const format::Sha256State& wanted,
                           Scrutiny scrutiny, format::FileSystem& files, const std::stop_token& stop) {
  const PlannedFile& planned = plan.files[copy.file];
  const Path part = partial_path(scope, planned);
  TRY_ASSIGN(const auto final, files.stat(final_path(plan, scope, planned)));
  if (final) return false;  // the final file is the one to be mended, and replaces the partial one
  TRY_ASSIGN(const auto info, files.stat(part));
  if (!info || !info->is_regular || info->is_link || info->size_bytes != planned.size_bytes) return false;
  if (scrutiny == Scrutiny::outside) return true;
  format::Sha256 hash;
  const format::ByteSink sink = [&](std::span<const std::byte> bytes) -> Result<void> {
    hash.update(bytes);
    return {};
  };
  const auto file = format::open_local_source(files, part);
  if (!file) return is_finding(file.error()) ? Result<bool>(false) : file.error();
  const auto read = (*file)->stream({copy.offset, copy.offset + wanted.bytes}, sink, stop);
  if (!read && !is_finding(read.error())) return read.error();
  return read.has_value() && hash.state() == wanted;
}

/// Shards whose tensor under way has lost written bytes. They are read again from the start, since the state of a
/// shard's digest is recorded only at the end of its record.
Result<std::set<uint64_t>> cut_shards(const RunScope& scope, const Plan& plan, const JournalState& done,
                                      Scrutiny scrutiny, format::FileSystem& files, const std::stop_token& stop) {
  std::set<uint64_t> cut;
  for (const auto& [shard, record] : done.begun) {
    for (size_t i = 0; i < record.begun.size(); ++i) {
      const Copy& copy = plan.shards[shard][record.tensors.size() + i];
      if (copy.file == kNoFile) continue;
      TRY_ASSIGN(const bool there, has_beginning(scope, plan, copy, record.begun[i].whole, scrutiny, files, stop));
      if (!there) cut.insert(shard);
    }
  }
  return cut;
}

/// Shards with tensors that gave different bytes when read with their shard and separately: one of the readings was
/// damaged, and it is unknown which.
std::set<uint64_t> doubtful_shards(const Plan& plan, const format::Checkpoint& source, const JournalState& done) {
  std::map<uint32_t, format::Digest> streamed;
  for (const auto& [shard, record] : done.shards) {
    for (size_t i = 0; i < record.tensors.size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      if (copy.conversion == Conversion::none) streamed[copy.tensor] = record.tensors[i].whole;
    }
  }
  std::set<uint64_t> doubtful;
  for (const auto& [shard, record] : done.shards) {
    for (size_t i = 0; i < record.tensors.size(); ++i) {
      const Copy& copy = plan.shards[shard][i];
      for (size_t n = 0; n < std::min(copy.needs.size(), record.tensors[i].needed.size()); ++n) {
        const auto once = streamed.find(copy.needs[n]);
        if (once == streamed.end() || record.tensors[i].needed[n] == once->second) continue;
        doubtful.insert(shard);
        doubtful.insert(source.tensors()[copy.needs[n]].file);
      }
    }
  }
  return doubtful;
}

Result<void> check_no_parts(const Path& out, format::FileSystem& files) {
  const Path parts = work_mark(out, WorkKind::parts);
  TRY_ASSIGN(const auto there, files.stat(parts));
  if (!there) return {};
  return Error{ErrorKind::conflict,
               fmt::format("{}: holds parts of a repack; where one has lost files, remove its folder below {} and give "
                           "its command again (the other parts stay)",
                           out.string(), parts.string())};
}

}  // namespace

Result<RepairReport> repair_unfinished(const RepackOutlook& outlook, format::Repository& repository,
                                       const RepackOptions& options, Scrutiny scrutiny, format::FileSystem& files,
                                       format::Progress& progress, const std::stop_token& stop) {
  TRY(check_no_parts(options.out, files));
  TRY_ASSIGN(const auto lock, lock_work_folder(options.out, format::LockKind::exclusive, files));
  const RunScope scope = whole_scope(outlook.plan, options.out);
  const format::Json identity = run_identity(outlook, repository);
  TRY(rewrite(journal_path(scope), {}, files));
  TRY_ASSIGN(JournalLoaded loaded, load_journal(scope, identity, outlook.plan, files));
  auto again = doubtful_shards(outlook.plan, outlook.source, loaded.state);
  TRY_ASSIGN(auto cut, cut_shards(scope, outlook.plan, loaded.state, scrutiny, files, stop));
  again.merge(cut);
  if (!again.empty()) {
    TRY(rewrite(journal_path(scope), {.again = again}, files));
    TRY_ASSIGN(loaded, load_journal(scope, identity, outlook.plan, files));
  }
  const WantedFiles wanted = wanted_by_journal(outlook.plan, loaded.state, options.out);
  TRY_ASSIGN(const std::vector<FileDamage> damage, find_damage(wanted, scrutiny, options.jobs, files, progress, stop));
  // While files are mended they hold less than the journal records. Drop the files' digests, so that a run that resumes
  // after a kill reads back what it seals.
  if (!damage.empty()) TRY(rewrite(journal_path(scope), {.file_hashes = false}, files));
  TRY(check_room(wanted, damage, files));
  RepairReport report{.checked_files = loaded.state.files.size(), .damaged_files = damage.size()};
  TRY_ASSIGN(const Plan ways, ways_from_source(outlook.plan, wanted, damage, repository.description()));
  TRY(mend_files(wanted, damage, ways, outlook.source, &repository, options.jobs, files, report, progress, stop));
  TRY(complete_run(outlook, repository, options, files, progress, stop));
  return report;
}

}  // namespace dspack::reshard
