#include "format/foreign_file.h"

#include <algorithm>
#include <array>

namespace dspack::format {

namespace {

struct ForeignFormat {
  std::string_view begins;  // in lower case if `any_case`
  bool any_case = false;
  std::string_view text;
};

constexpr std::string_view kPage =
    "is an HTML page, not the file: a server's answer was saved in its place; fetch it again (with a token, where the "
    "repository asks for one)";
constexpr std::string_view kPickle =
    "is a pickle of PyTorch, which can run code and is not read; convert the checkpoint to safetensors";

constexpr std::array<ForeignFormat, 7> kKinds = {{
    {.begins = "version https://git-lfs",
     .text = "is a pointer of Git LFS, not the file; `git lfs pull` in the clone or `hf download` fetches it"},
    {.begins = "<!doctype html", .any_case = true, .text = kPage},
    {.begins = "<html", .any_case = true, .text = kPage},
    {.begins = "GGUF",
     .text = "is a GGUF file, which llama.cpp runs; this program reads safetensors, as the model's own repository has "
             "them"},
    {.begins = "PK\x03\x04", .text = kPickle},
    {.begins = "\x80\x02", .text = kPickle},
    {.begins = "\x1f\x8b", .text = "is compressed by gzip; unpack it first"},
}};

constexpr char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool begins_with(std::string_view bytes, const ForeignFormat& kind) {
  if (!kind.any_case) return bytes.starts_with(kind.begins);
  const size_t blank = std::min(bytes.find_first_not_of(" \t\r\n"), bytes.size());
  bytes.remove_prefix(blank);
  return bytes.size() >= kind.begins.size() && std::equal(kind.begins.begin(), kind.begins.end(), bytes.begin(),
                                                          [](char a, char b) { return a == lower(b); });
}

}  // namespace

std::string_view foreign_kind(std::string_view first_bytes) {
  const auto* found =
      std::ranges::find_if(kKinds, [&](const ForeignFormat& kind) { return begins_with(first_bytes, kind); });
  return found == kKinds.end() ? std::string_view() : found->text;
}

}  // namespace dspack::format
