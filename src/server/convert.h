/* Building the messages of a chat (pm_chat.messages) out of what another protocol calls them. */
#ifndef PM_CONVERT_H
#define PM_CONVERT_H

#include "exchange.h"
#include "str.h"

/* Messages in the making. `failed` stays set once memory ran out. */
typedef struct pm_talk {
    json_t *messages;
    json_t *turn; /* the assistant's, to which calls and text may still be added; borrowed */
    bool failed;
    /* A text that grows piece by piece: it becomes this member of the message when another begins, or at the end. */
    json_t *growing; /* borrowed; NULL: none */
    const char *member;
    pm_str text;
} pm_talk;

/* Adds text to a member of one of the messages, after the separator where there is text already. */
void pm_talk_extend(pm_talk *talk, json_t *message, const char *member, const char *separator, const char *text,
                    size_t len);

/* The messages are complete; false where memory ran out. To be called whatever has happened. */
bool pm_talk_end(pm_talk *talk);

/* Appends a message, whose content is taken over. */
void pm_talk_add(pm_talk *talk, const char *role, json_t *content);

/* Puts text before the conversation: into its first message when that is the system's. */
void pm_talk_system(pm_talk *talk, const char *text, size_t len);

/* Adds to the assistant's turn, beginning one where the last message is another's: reasoning, text, a call whose
 * arguments are JSON text (taken over, as the others are). */
void pm_talk_reasoning(pm_talk *talk, json_t *text);
void pm_talk_answer(pm_talk *talk, json_t *text);
void pm_talk_call(pm_talk *talk, const char *id, const char *name, json_t *arguments);

/* The result of a call. */
void pm_talk_result(pm_talk *talk, const char *id, json_t *content);

/* How a protocol names the parts of a content list that are text. */
typedef struct pm_parts {
    const char *const *types; /* NULL-terminated */
    const char *separator;    /* between two of them */
} pm_parts;

/* The text of a content, which is a text or a list of parts; NULL with a refusal that names `path` and the part. */
json_t *pm_parts_text(const pm_parts *parts, const json_t *content, const char *path, pm_refusal *refusal);

/* A list of tools as a chat has them, out of one whose tools are functions of that type (or of none) with their
 * arguments' schema in that member. NULL with a refusal. */
json_t *pm_convert_tools(const json_t *tools, const char *type, const char *schema, pm_refusal *refusal);

#endif
