#include "format/tensor_file.h"

#include <fmt/format.h>

#include "format/base/size.h"

namespace dspack::format {

uint64_t TensorFileWriter::header_room(uint64_t tensors, uint64_t name_bytes, uint64_t metadata_bytes) {
  // {"data_offsets":[a,b],"dtype":"F32","shape":[1,n,m]}, with quotes and comma: 130 bytes if all numbers are long.
  constexpr uint64_t kEntryBytes = 160;
  constexpr uint64_t kFrameBytes = 64;
  return round_up(kFrameBytes + metadata_bytes + tensors * (name_bytes + kEntryBytes), kPageBytes);
}

Result<std::unique_ptr<TensorFileWriter>> TensorFileWriter::create(FileSystem& files, const Path& path,
                                                                   uint64_t header_room) {
  TRY_ASSIGN(const bool stream, is_stream(files, path));
  TRY_ASSIGN(auto file, stream ? files.open_write(path, OpenMode::keep) : create_temporary(files, path));
  return std::unique_ptr<TensorFileWriter>(
      new TensorFileWriter(files, path, stream ? path : temporary_of(path), header_room, std::move(file)));
}

TensorFileWriter::TensorFileWriter(FileSystem& files, Path path, Path temporary, uint64_t header_room,
                                   std::unique_ptr<WriteFile> file)
    : files_(files),
      path_(std::move(path)),
      temporary_(std::move(temporary)),
      header_room_(header_room),
      file_(std::move(file)) {}

TensorFileWriter::~TensorFileWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  if (temporary_ != path_) (void)files_.remove_file(temporary_);  // the earlier error is the one to report
}

size_t TensorFileWriter::add(std::string name, Dtype dtype, std::vector<uint64_t> shape) {
  const uint64_t bytes = tensor_bytes(dtype, shape).value();
  tensors_.push_back({.name = std::move(name),
                      .dtype = dtype,
                      .shape = std::move(shape),
                      .data = {.begin = data_bytes_, .end = data_bytes_ + bytes}});
  written_.push_back(0);
  data_bytes_ += bytes;
  return tensors_.size() - 1;
}

Result<void> TensorFileWriter::append(size_t tensor, std::span<const std::byte> bytes) {
  DSPACK_CHECK(bytes.size() <= missing_bytes(tensor), tensors_[tensor].name + ": more bytes than it has");
  TRY(file_->write(header_room_ + tensors_[tensor].data.begin + written_[tensor], bytes));
  written_[tensor] += bytes.size();
  return {};
}

uint64_t TensorFileWriter::missing_bytes(size_t tensor) const {
  return tensors_[tensor].data.size() - written_[tensor];
}

Result<void> TensorFileWriter::seal(const std::map<std::string, std::string>& metadata) {
  for (size_t i = 0; i < tensors_.size(); ++i)
    DSPACK_CHECK(missing_bytes(i) == 0, tensors_[i].name + ": some of its bytes have not come");
  const std::string header = write_header(tensors_, metadata, header_room_);
  DSPACK_CHECK(header.size() == header_room_, "the header has outgrown its room");
  TRY(file_->write(0, as_bytes(header)));
  TRY(file_->resize(header_room_ + data_bytes_));
  TRY(file_->sync());
  if (temporary_ != path_) TRY(files_.rename(temporary_, path_));
  file_.reset();
  if (temporary_ == path_) return {};
  return files_.sync_folder(path_.has_parent_path() ? path_.parent_path() : Path("."));
}

}  // namespace dspack::format
