// The bytes of a file on their way to the Hub's large file storage, in one piece or in parts, as the storage asks.
// Threads: thread-safe; a call sends one file. Memory: curl's buffers, whatever the size of the file. Errors: those of
// HubWriter; network, where the storage refuses for good; corrupt, where the file has another size by now.
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

  /// What the storage has to say about a file; `file.size_bytes` > 0.
  [[nodiscard]] Result<void> send(const LocalFile& file, format::LfsObject answer, const std::stop_token& stop);

  /// Sent by this object, without what was stored already.
  [[nodiscard]] uint64_t sent_files() const { return sent_files_; }
  [[nodiscard]] uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Sending;
  enum class Outcome { stored, refused };  // refused: the links may have expired; `Sending::refusal` says how
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
