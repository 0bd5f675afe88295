#include "kernels/load_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "dspack_cuda_build.h"
#include "kernels/cuda/host/cuda_library.h"

namespace dspack::kernels {

namespace {

constexpr char kFile[] = "libdspack_cuda.so";
// Relative to the program's folder: same folder, build tree, installation.
constexpr std::array<const char*, 3> kFolders = {".", "../kernels/cuda", "../lib/dspack"};

Error absent(const std::filesystem::path& beside) {
  if (const std::string_view reason = kCudaAbsence; !reason.empty()) {
    return {ErrorKind::not_found, "this build has no CUDA library: " + std::string(reason)};
  }
  return {ErrorKind::not_found,
          std::string(kFile) + " is not in " + beside.string() +
              ", nor in ../kernels/cuda or ../lib/dspack beside it; name it with --dev cuda-library=FILE"};
}

Result<std::string> find_library() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return Error{ErrorKind::not_found, "this system does not say where the program lies (/proc/self/exe); name " +
                                           std::string(kFile) + " with --dev cuda-library=FILE"};
  }
  for (const char* folder : kFolders) {
    const auto path = (program.parent_path() / folder / kFile).lexically_normal();
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return absent(program.parent_path());
}

Result<void*> load_entry(const std::string& library) {
  std::error_code error;
  if (!std::filesystem::exists(library, error)) {
    return Error{ErrorKind::not_found, "there is no CUDA library " + library};
  }
  // dlopen would search the system's library folders for a name without a folder.
  const std::string path = library.find('/') == std::string::npos ? "./" + library : library;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    return Error{ErrorKind::unsupported,
                 "the CUDA library does not load: " + std::string(reason == nullptr ? library.c_str() : reason)};
  }
  void* const symbol = dlsym(handle, kCudaEntryName);
  if (symbol == nullptr) {
    return Error{ErrorKind::unsupported,
                 library + " is no CUDA library of dspack (it has no " + std::string(kCudaEntryName) + ")"};
  }
  return symbol;
}

}  // namespace

bool has_nvidia_driver(const std::string& root) {
  static constexpr std::array<const char*, 3> kTraces = {"proc/driver/nvidia", "dev/nvidiactl", "dev/dxg"};
  return std::any_of(kTraces.begin(), kTraces.end(), [&root](const char* trace) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::path(root) / trace, error);
  });
}

std::string cuda_library_fact() {
  const auto library = find_library();
  if (!library) return library.error().message;
  const std::string_view architectures = kCudaArchitectures;
  return *library +
         (architectures.empty() ? ", of another build" : ", for compute capabilities " + std::string(architectures));
}

Result<std::unique_ptr<Device>> load_cuda_device(const std::string& library, const CudaOptions& options) {
  std::string path = library;
  if (path.empty()) {
    TRY_ASSIGN(path, find_library());
  }
  TRY_ASSIGN(void* const entry, load_entry(path));
  const auto make_device = reinterpret_cast<CudaEntry>(entry);
  CudaOutcome outcome;
  if (make_device(kKernelsInterface, &options, &outcome) != kKernelsInterface) {
    return Error{ErrorKind::unsupported,
                 path + " was built with another version of this program; build the two together"};
  }
  DSPACK_CHECK(outcome.has_value(), "the CUDA library failed without a message");
  return *std::move(outcome);
}

}  // namespace dspack::kernels
