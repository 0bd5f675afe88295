// Checkpoints in local folders, for tests.
// Threads: single-thread. Lifetime: values. Errors fail the test.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <utility>

#include "runtime/access/checkpoint_access.h"
#include "runtime/config/config.h"
#include "runtime/generate/loaded_model.h"

namespace dspack::test {

template <class T>
T required(Result<T> result) {
  REQUIRE_MESSAGE(result, (result ? "" : result.error().message));
  return std::move(*result);
}

/// Its place: for who loads a model from it.
inline std::unique_ptr<runtime::CheckpointAccess> open_checkpoint(const std::filesystem::path& folder) {
  auto repository = required(format::open_repository(folder.string(), {}, format::posix_file_system()));
  return std::make_unique<runtime::CheckpointAccess>(runtime::make_folder_place(std::move(repository)));
}

/// With its catalogue and weights, and what config.json says.
struct OpenedCheckpoint {
  explicit OpenedCheckpoint(const std::filesystem::path& folder)
      : access(open_checkpoint(folder)), config(required(runtime::read_model_config(access->files(), {}))) {
    const auto catalogue = access->open_catalogue(config.layers, {});
    REQUIRE_MESSAGE(catalogue, (catalogue ? "" : catalogue.error().message));
    const auto weights = access->open_weights({.io = runtime::IoMethod::buffered}, {});
    REQUIRE_MESSAGE(weights, (weights ? "" : weights.error().message));
  }
  [[nodiscard]] const format::Checkpoint& checkpoint() const { return access->catalogue(); }

  std::unique_ptr<runtime::CheckpointAccess> access;
  runtime::ModelConfig config;
};

}  // namespace dspack::test
