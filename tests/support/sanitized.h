/* MOERT_ADDRESS_SANITIZER and MOERT_THREAD_SANITIZER: defined where a program is built for them.
 * gcc defines macros of its own, clang answers a question. */
#ifndef MOERT_TESTS_SUPPORT_SANITIZED_H_
#define MOERT_TESTS_SUPPORT_SANITIZED_H_

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define MOERT_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define MOERT_THREAD_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define MOERT_ADDRESS_SANITIZER 1
#endif
#ifdef __SANITIZE_THREAD__
#define MOERT_THREAD_SANITIZER 1
#endif

#endif /* MOERT_TESTS_SUPPORT_SANITIZED_H_ */
