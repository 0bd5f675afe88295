#include "format/source/http_repository.h"

#include <fmt/format.h>

#include "format/base/foreign_text.h"
#include "format/source/http_source.h"
#include "format/source/http_text.h"

namespace dspack::format {
namespace {

class HttpRepository final : public Repository {
 public:
  HttpRepository(std::string_view url, const RemoteOptions& options)
      : shown_(without_passwords(url)), base_url_(url), client_(options) {
    while (base_url_.ends_with('/'))
      base_url_.pop_back();
  }

  RepositoryKind kind() const override { return RepositoryKind::http; }
  std::string description() const override { return shown_; }
  std::string locate(std::string_view path) const override { return without_passwords(url_of(path)); }

  Result<std::unique_ptr<ByteSource>> open(std::string_view path, std::stop_token stop) override {
    auto source = std::make_unique<HttpSource>(client_, HttpFile{.url = url_of(path)});
    TRY(source->probe(stop));
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::unique_ptr<ByteSource>> open_known(std::string_view path, const KnownFile& known,
                                                 std::stop_token /*stop*/) override {
    auto source = std::make_unique<HttpSource>(client_, HttpFile{.url = url_of(path)});
    source->know(known);
    return std::unique_ptr<ByteSource>(std::move(source));
  }

  Result<std::string> read_text(std::string_view path, uint64_t limit_bytes, std::stop_token stop) override {
    const HttpRequest request{.url = url_of(path), .range = {}, .bearer_token = {}, .expected_version = {}};
    TRY_ASSIGN(HttpText text, get_text(client_, request, limit_bytes, stop));
    return std::move(text.text);
  }

  Result<std::optional<std::vector<ListedFile>>> list(std::stop_token /*stop*/) override {
    return std::optional<std::vector<ListedFile>>();  // plain HTTP has no listing
  }

  Result<std::optional<DeclaredFile>> declared(std::string_view /*path*/, std::stop_token /*stop*/) override {
    return std::optional<DeclaredFile>();
  }

 private:
  /// For requests only: a name and password in the address go to its host, and into no text.
  [[nodiscard]] std::string url_of(std::string_view path) const { return base_url_ + "/" + url_path(path); }

  std::string shown_;     // as it was asked for, without a password
  std::string base_url_;  // with it, without a trailing slash
  PatientClient client_;
};

}  // namespace

std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options) {
  return std::make_unique<HttpRepository>(url, options);
}

std::string url_path(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~/").find(c) != std::string_view::npos;
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

}  // namespace dspack::format
