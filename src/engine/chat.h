/* A chat request as the variables of a template. */
#ifndef PM_CHAT_H
#define PM_CHAT_H

#include "base/base.h"

#include <jansson.h>

/* Checks the request and makes the object that the template is rendered with (owned by the caller: json_decref):
 *   messages               with the content's text parts joined, without anything between them, and the arguments of
 *                          tool calls as objects; without members that are null; reasoning, given as
 *                          reasoning_content, thinking or reasoning, is there as the first two
 *   tools                  null when there are none
 *   documents              null
 *   add_generation_prompt
 *   and the request's own variables. */
int pm_chat_variables(const pm_chat *chat, json_t **out, pm_error *err);

/* Ids of calls for templates that take nothing but nine letters and digits: makes such of those that are others, the
 * same of the same, so that a call and its result stay together and a conversation that goes on begins as before. */
int pm_chat_short_ids(json_t *variables, pm_error *err);

#endif
