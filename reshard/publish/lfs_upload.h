// Sends a file's bytes to the Hub's large file storage, in one piece or in parts, as the storage asks.
// Threads: thread-safe; a call sends one file. Memory: curl's buffers, independent of the file's size. Errors: those of
// HubWriter; network, if the storage keeps refusing; corrupt, if the file's size has changed.
// Source: the Git LFS batch API, and huggingface_hub's lfs.py for its "multipart" transfer.
#pragma once

#include <atomic>

#include "format/hub/writer.h"
#include "format/progress.h"
#include "reshard/publish/sealed_folder.h"

namespace dspack::reshard {

class LfsUpload {
 public:
  LfsUpload(const format::HubWriter& hub, std::string revision, const SealedFolder& sealed, format::FileSystem& files,
            format::Progress& progress)
      : hub_(hub), revision_(std::move(revision)), sealed_(sealed), files_(files), progress_(progress) {}

  /// `answer`: the Hub's answer to the batch request for this file; `file.size_bytes` > 0.
  [[nodiscard]] Result<void> send(const LocalFile& file, format::LfsObject answer, const std::stop_token& stop);

  /// Sent by this object; files that the storage already had are not counted.
  [[nodiscard]] uint64_t sent_files() const { return sent_files_; }
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Sending;
  enum class Outcome { stored, refused };  // refused: the links may have expired; the reason is in `Sending::refusal`
  [[nodiscard]] Result<Outcome> send_by(Sending& sending, const format::LfsObject& answer, const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> send_part(Sending& sending, const format::UploadPart& part,
                                          const std::vector<std::string>& headers, std::string& etag,
                                          const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> tell(Sending& sending, const std::string& href, std::string body,
                                     std::vector<std::string> headers, const std::stop_token& stop);
  [[nodiscard]] Result<Outcome> refused(Sending& sending, const format::HttpResponse& answer,
                                        const std::string& name) const;

  const format::HubWriter& hub_;
  std::string revision_;
  const SealedFolder& sealed_;
  format::FileSystem& files_;
  format::Progress& progress_;
  std::atomic<uint64_t> sent_files_{0};
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace dspack::reshard
