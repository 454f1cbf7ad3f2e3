/* common/base/list.h - intrusive doubly linked list. Ownership: the elements' owner. Threading: the list's owner. */
#ifndef SLUICE_COMMON_BASE_LIST_H
#define SLUICE_COMMON_BASE_LIST_H

#include <stddef.h>

struct list {
    struct list *next, *prev; /* a head points to itself when empty; an element outside any list is all 0 */
};

#define LIST_ENTRY(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define LIST_EACH(it, head) for (struct list *it = (head)->next, *it##_next; it##_next = it->next, it != (head); it = it##_next)

static inline void list_init(struct list *head)
{
    head->next = head->prev = head;
}

static inline int list_empty(const struct list *head)
{
    return head->next == head;
}

static inline int list_linked(const struct list *e)
{
    return e->next != NULL;
}

static inline void list_push_back(struct list *head, struct list *e)
{
    e->prev = head->prev;
    e->next = head;
    head->prev->next = e;
    head->prev = e;
}

static inline void list_push_front(struct list *head, struct list *e)
{
    list_push_back(head->next, e);
}

static inline void list_remove(struct list *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
    e->next = e->prev = NULL;
}

#endif
