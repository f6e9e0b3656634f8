// SPDX-License-Identifier: Apache-2.0

// Defines std::condition_variable::wait(), so that our binaries run with the libstdc++ of GCC 11.
//
// GCC 12 moved this function to the symbol version GLIBCXX_3.4.30, which RHEL 9 lacks. Nothing else
// that Waybill calls is newer than GLIBCXX_3.4.29. The definition below is the one in libstdc++,
// and the linker prefers it to the shared library's.
#include <condition_variable>
#include <mutex>

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 12
namespace std {

// NOLINTNEXTLINE(cert-dcl58-cpp): a member function that <condition_variable> declares.
void condition_variable::wait(unique_lock<mutex>& lock) { _M_cond.wait(*lock.mutex()); }

}  // namespace std
#endif
