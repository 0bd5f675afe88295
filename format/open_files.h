// A bounded table of open files: a file in it is not opened again; at the limit it closes the least recently used file
// that is not in use. Threads: thread-safe; a thread waits if every file is in use, so it must not hold one itself.
// Lifetime: a Use ends before its table. Errors: those of opening.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "format/base/result.h"
#include "format/file_system.h"

namespace dspack::format {

class OpenFiles {
 private:
  struct Entry {
    uint32_t number = 0;
    std::unique_ptr<ReadFile> file;  // null: being opened
    unsigned users = 0;
    bool is_forgotten = false;  // no longer in by_number_
  };

 public:
  using Opener = std::function<Result<std::unique_ptr<ReadFile>>(uint32_t number)>;

  /// Keeps a file open.
  class Use {
   public:
    Use(Use&& other) noexcept : table_(std::exchange(other.table_, nullptr)), entry_(other.entry_) {}
    Use& operator=(Use&&) = delete;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() {
      if (table_ != nullptr) table_->release(*entry_);
    }
    [[nodiscard]] const ReadFile& file() const { return *entry_->file; }

   private:
    friend class OpenFiles;
    Use(OpenFiles& table, Entry& entry) : table_(&table), entry_(&entry) {}
    OpenFiles* table_;
    Entry* entry_;
  };

  /// `opener` is called without the table's lock, and only once at a time for each file. Precondition: limit > 0.
  OpenFiles(unsigned limit, Opener opener);

  [[nodiscard]] Result<Use> use(uint32_t number);
  /// The next use opens the file again.
  void forget(uint32_t number);

 private:
  [[nodiscard]] bool make_room();  // requires the lock; false: all files are in use
  void release(Entry& entry);

  unsigned limit_;
  Opener opener_;
  std::mutex mutex_;
  std::condition_variable changed_;                                     // a file was opened or released
  std::list<Entry> entries_;                                            // most recently used first; guarded by mutex_
  std::unordered_map<uint32_t, std::list<Entry>::iterator> by_number_;  // guarded by mutex_
};

}  // namespace dspack::format
