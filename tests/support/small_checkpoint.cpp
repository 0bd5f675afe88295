#include "tests/support/small_checkpoint.h"

#include <fstream>
#include <iterator>

#include "format/json.h"

namespace dspack::test {

std::string safetensors_file(const std::vector<RawTensor>& tensors, size_t padding) {
  format::Json header = format::Json::object();
  std::string data;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string json = header.dump() + std::string(padding, ' ');
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    file[i] = static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return file + json + data;
}

std::string pattern(size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  uint32_t state = seed * 2654435761U + 1;
  for (char& c : text) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

SmallCheckpoint::SmallCheckpoint() {
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(0, layer + "input_layernorm.weight", "BF16", {8}, 2);
    add(0, layer + "self_attn.q_a_proj.weight", "F8_E4M3", {8, 8}, 1);
    add(1, layer + "self_attn.q_a_proj.weight_scale_inv", "F32", {1, 1}, 4);
    for (const std::string expert : {"0.", "1.", "2."}) {
      const std::string prefix = layer + "mlp.experts." + expert;
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        add(part == "down_proj" ? 1 : 0, prefix + part + ".weight", "F8_E4M3", {64, 64}, 1);
        add(2, prefix + part + ".weight_scale_inv", "F32", {1, 1}, 4);
      }
    }
  }
  add(0, "model.embed_tokens.weight", "BF16", {16, 8}, 2);
  add(2, "model.norm.weight", "BF16", {8}, 2);
  add(2, "lm_head.weight", "BF16", {16, 8}, 2);
  add(2, "model.layers.1.eh_proj.weight", "BF16", {8, 16}, 2);
}

void SmallCheckpoint::add(size_t shard, const std::string& name, const std::string& dtype, std::vector<uint64_t> shape,
                          size_t element) {
  size_t bytes = element;
  for (const uint64_t dimension : shape)
    bytes *= dimension;
  shards_[shard].push_back({name, dtype, std::move(shape), pattern(bytes, ++seed_)});
}

std::string SmallCheckpoint::shard_name(size_t shard) {
  return "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
}

void SmallCheckpoint::write(const TempFolder& folder) const {
  format::Json map = format::Json::object();
  for (size_t shard = 0; shard < 3; ++shard) {
    folder.write(shard_name(shard), safetensors_file(shards_[shard], shard));
    for (const RawTensor& tensor : shards_[shard])
      map[tensor.name] = shard_name(shard);
  }
  folder.write("model.safetensors.index.json",
               format::Json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}).dump());
  folder.write("config.json", R"({"model_type":"deepseek_v3"})");
  folder.write("README.md", "a card\n");
  folder.write("empty.txt", "");
}

std::map<std::string, std::string> tree(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

}  // namespace dspack::test
