#include "reshard/run/tensor_reader.h"

namespace dspack::reshard {

Result<format::ByteSource*> TensorReader::open(uint32_t file, const std::stop_token& stop) {
  if (open_ && open_file_ == file) return open_.get();
  open_.reset();
  TRY_ASSIGN(open_, format::open_catalogued(repository_, catalogue_.files()[file], stop));
  open_file_ = file;
  return open_.get();
}

Result<void> TensorReader::stream(const format::TensorEntry& tensor, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  return stream(format::Extent{tensor.file, tensor.range}, sink, stop);
}

Result<void> TensorReader::stream(const format::Extent& extent, const format::ByteSink& sink,
                                  const std::stop_token& stop) {
  TRY_ASSIGN(format::ByteSource* const source, open(extent.file, stop));
  return source->stream(extent.range, sink, stop);
}

Result<std::vector<std::byte>> TensorReader::read(const format::TensorEntry& tensor, const std::stop_token& stop) {
  TRY_ASSIGN(format::ByteSource* const source, open(tensor.file, stop));
  std::vector<std::byte> whole(tensor.range.size());
  TRY(source->read(tensor.range.begin, whole, stop));
  return whole;
}

}  // namespace dspack::reshard
