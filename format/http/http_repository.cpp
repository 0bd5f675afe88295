#include "format/http/http_repository.h"

#include "format/base/foreign_text.h"
#include "format/http/http_source.h"

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
    TRY_ASSIGN(HttpResponse answer, client_.send({.url = url_of(path), .answer_limit_bytes = limit_bytes}, stop));
    return std::move(answer.body);
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
  RetryingClient client_;
};

}  // namespace

std::unique_ptr<Repository> make_http_repository(std::string_view url, const RemoteOptions& options) {
  return std::make_unique<HttpRepository>(url, options);
}

}  // namespace dspack::format
