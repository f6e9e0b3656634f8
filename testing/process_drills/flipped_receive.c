/* SPDX-License-Identifier: Apache-2.0 */

// Flips a bit of what a process receives from its sockets. Drills load it with LD_PRELOAD.
//
// WAYBILL_FLIP names a file of three numbers, which the drill and the process map: how many long
// receives away the flip is (0: none is wanted), which bit of what is received then, and how many
// were flipped.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

// What is shorter is the control channel's, or a frame.
enum { kLongBytes = 64 << 10 };

struct Flip {
  _Atomic uint32_t receives_away;
  _Atomic uint32_t bit;
  _Atomic uint32_t flipped;
};

typedef ssize_t (*Recvmsg)(int, struct msghdr*, int);

static Recvmsg real_recvmsg;
static struct Flip* flip;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void Start(void) {
  *(void**)&real_recvmsg = dlsym(RTLD_NEXT, "recvmsg");
  const char* path = getenv("WAYBILL_FLIP");
  const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* memory = mmap(NULL, sizeof(struct Flip), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory != MAP_FAILED) flip = memory;
}

ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  pthread_once(&once, Start);
  const ssize_t size = real_recvmsg(fd, message, flags);
  if (flip == NULL || size <= 0 || message->msg_iov[0].iov_len < kLongBytes) return size;
  uint32_t away = flip->receives_away;
  while (away > 0 && !__atomic_compare_exchange_n((uint32_t*)&flip->receives_away, &away, away - 1, 0,
                                                  __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  if (away != 1) return size;
  const size_t payload = message->msg_iov[0].iov_len;
  const size_t received = (size_t)size < payload ? (size_t)size : payload;
  ((char*)message->msg_iov[0].iov_base)[flip->bit / 8 % received] ^= (char)(1 << flip->bit % 8);
  ++flip->flipped;
  return size;
}
