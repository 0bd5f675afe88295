// Kernels that are run for what the emulated GPU says to them. Threads: one. Lifetime: none. Errors: fail the test
// case.
#pragma once

#include <doctest/doctest.h>
#include <dspack_gpu.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace dspack::test {

struct Ending {
  bool is_abort = false;
  std::string text;  // on standard error
};

/// How a process of its own ends that does `work`.
template <class Work>
Ending end_of(Work work) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    work();
    _exit(0);
  }
  close(pipe_ends[1]);
  Ending ending;
  char text[256];
  for (ssize_t count = 0; (count = read(pipe_ends[0], text, sizeof(text))) > 0;)
    ending.text.append(text, static_cast<size_t>(count));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  ending.is_abort = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
  return ending;
}

/// Whether `work` ends a process of its own as DSPACK_CHECK does.
template <class Work>
bool aborts(Work work) {
  return end_of(work).is_abort;
}

template <class... Parameters, class... Arguments>
void run(const gpu::LaunchShape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  const auto stream = gpu::make_stream(0);
  gpu::launch(*stream, shape, kernel, arguments...);
  stream->synchronize();
}

}  // namespace dspack::test
